"""Options as one types them."""

from maxrl.learning.config import Config
from maxrl.run.command_line import option_parser, override


def with_overrides(config: Config, arguments: list[str]) -> Config:
    """`config` with the options in `arguments`; UsageError for what cannot be."""
    return override(config, vars(option_parser(config).parse_options(arguments)))
