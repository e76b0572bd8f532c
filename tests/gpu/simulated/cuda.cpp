// The device of cuda.py: tensors of the dispatch key CUDA whose bytes lie in host memory.
#include <Python.h>
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <unistd.h>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
using namespace at;
namespace {
constexpr auto KEY = DispatchKey::CUDA;
const Device GPU(kCUDA, 0);
std::mutex guard;
std::unordered_map<void*, size_t> pinned;
int64_t now = 0, peak = 0, limit = 0, operations = 0;
// Of operations: those that may mix devices, those without a kernel, those that wait, those that
// are not deterministic.
std::unordered_set<std::string> mixing, absent, shapes, random_order;
struct Step { c10::OperatorHandle op; torch::jit::Stack in, out; };
using Tape = std::vector<Step>;
std::unordered_map<int64_t, Tape> tapes;
int64_t capturing = 0;
const pid_t owner = getpid();
void own() { TORCH_CHECK(getpid() == owner, "Cannot re-initialize CUDA in forked subprocess."); }

void event(const char* kind, const std::string& name) {
  TORCH_CHECK(!capturing, "CUDA error: operation not permitted when stream is capturing: ", kind, " ", name);
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject* module = PyImport_ImportModule("simulated_cuda");
  PyObject* done = module ? PyObject_CallMethod(module, "event", "ss", kind, name.c_str()) : nullptr;
  if (!done) PyErr_Print();
  Py_XDECREF(done); Py_XDECREF(module);
  PyGILState_Release(state);
}
// Order on streams: what a stream knows of the others is how many of their operations it comes after.
using Clock = std::map<int64_t, int64_t>;
std::map<int64_t, Clock> clocks;
Clock on_the_host;  // an operation is issued after what the host has waited for
std::map<int64_t, Clock> events;
thread_local int64_t stream = 0;
void merge(Clock& into, const Clock& from) { for (auto& [s, n] : from) into[s] = std::max(into[s], n); }

// Memory as torch's caching allocator keeps it, but without sizes of blocks and gaps between them:
// what is freed is used again by its stream and its pool (0: none) alone, until it is released.
// That happens outside of captures and pools, for pools that no MemPool and no graph holds.
struct Key { int64_t pool, stream; bool operator<(const Key& o) const { return std::tie(pool, stream) < std::tie(o.pool, o.stream); } };
struct Amount { int64_t live = 0, reserved = 0; };
struct Block { int64_t size; Key key; std::shared_ptr<void> bytes; int64_t writer, when; };
std::map<Key, Amount> amounts;
std::map<int64_t, int64_t> holders;  // of each pool
std::unordered_map<void*, Block> live;
int64_t pool = 0, reserved = 0, most_reserved = 0;
void release_unused(int64_t only = 0) {
  for (auto& [key, amount] : amounts)
    if (only ? key.pool == only && !holders[only] : !key.pool || !holders[key.pool]) {
      reserved -= amount.reserved - amount.live;
      amount.reserved = amount.live;
    }
}
void empty_cache() {
  std::lock_guard<std::mutex> hold(guard);
  if (!capturing && !pool) release_unused();
}
void hold_pool(int64_t id, int64_t more, bool empty) {
  std::lock_guard<std::mutex> hold(guard);
  if (!(holders[id] += more) && empty) release_unused(id);
}
void use_pool(int64_t id) { pool = id; }
void charge(void* p, size_t n, std::shared_ptr<void> bytes) {
  std::lock_guard<std::mutex> hold(guard);
  if (!n) return;
  Key key{pool, stream};
  auto& amount = amounts[key];
  auto more = [&] { return std::max<int64_t>(0, amount.live + n - amount.reserved); };
  if (limit && reserved + more() > limit && !capturing && !pool) release_unused();
  TORCH_CHECK_WITH(OutOfMemoryError, !limit || reserved + more() <= limit, "CUDA out of memory. Tried to allocate ", n, " bytes.");
  reserved += more(); amount.reserved += more(); amount.live += n;
  most_reserved = std::max(most_reserved, reserved);
  live[p] = {(int64_t)n, key, std::move(bytes), 0, 0};
  now += n; peak = std::max(peak, now);
}
void discharge(void* p) {
  std::lock_guard<std::mutex> hold(guard);
  auto found = live.find(p);
  if (found == live.end()) return;
  now -= found->second.size; amounts[found->second.key].live -= found->second.size;
  live.erase(found);
}
// An operation of the current stream reads or writes a tensor. What another stream has written is
// there if this stream, or the host, has waited for it.
void use(const Tensor& t, bool writes, const std::string& name) {
  if (capturing || !t.defined() || !t.has_storage()) return;
  std::lock_guard<std::mutex> hold(guard);
  auto found = live.find(t.storage().mutable_data());
  if (found == live.end()) return;
  auto& [size, key, bytes, writer, when] = found->second;
  auto& clock = clocks[stream];
  TORCH_CHECK(writer == stream || std::max(clock[writer], on_the_host[writer]) >= when, name, " on stream ", stream, " of a tensor that stream ", writer, " has written, without a wait between them");
  if (writes) { writer = stream; when = ++clock[stream]; }
}
void wait_for(int64_t waiting, int64_t other) { std::lock_guard<std::mutex> hold(guard); merge(clocks[waiting], clocks[other]); }
void record_event(int64_t event, int64_t on) { std::lock_guard<std::mutex> hold(guard); events[event] = clocks[on]; }
void wait_event(int64_t waiting, int64_t event) { std::lock_guard<std::mutex> hold(guard); merge(clocks[waiting], events[event]); }
void set_stream(int64_t id) { stream = id; }
// Copies to pinned memory, which arrive when the host waits.
std::vector<std::pair<Tensor, Tensor>> late;
void host_waits() {
  { std::lock_guard<std::mutex> hold(guard); for (auto& [s, clock] : clocks) merge(on_the_host, clock); }
  for (auto& [to, from] : late) to.copy_(from);
  late.clear();
}
struct Memory : c10::Allocator {
  DataPtr allocate(size_t n) override {
    own();
    std::shared_ptr<void> bytes(n ? std::aligned_alloc(64, (n + 63) / 64 * 64) : nullptr, &std::free);
    void* p = bytes.get();
    charge(p, n, std::move(bytes));
    return {p, p, &discharge, GPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &discharge; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
} memory;
void unpin(void* p) { { std::lock_guard<std::mutex> hold(guard); pinned.erase(p); } std::free(p); }
struct Pinned : c10::Allocator {
  DataPtr allocate(size_t n) override {
    void* p = n ? std::aligned_alloc(64, (n + 63) / 64 * 64) : nullptr;
    std::lock_guard<std::mutex> hold(guard);
    if (n) pinned[p] = n;
    return {p, p, &unpin, Device(kCPU)};
  }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
} pinning;
bool is_pinned(const void* p) {
  std::lock_guard<std::mutex> hold(guard);
  for (auto& [at, n] : pinned) if (p >= at && p < (char*)at + n) return true;
  return false;
}
struct Guard : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kCUDA; }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device d) const override { TORCH_CHECK(d.index() < 1, "CUDA error: invalid device ordinal"); }
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::UNSAFE, GPU, stream); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::UNSAFE, GPU, 0); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::UNSAFE, GPU, 1); }
  Stream exchangeStream(Stream s) const override { auto old = stream; stream = s.id(); return Stream(Stream::UNSAFE, GPU, old); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** e, const Stream& s, const DeviceIndex, const c10::EventFlag) const override {
    static std::atomic<int64_t> made{0};
    if (!*e) *e = (void*)-++made;
    record_event((int64_t)*e, s.id());
  }
  void block(void* e, const Stream& s) const override { wait_event(s.id(), (int64_t)e); }
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override { event("to host", "stream.synchronize"); }
  void synchronizeEvent(void*) const override { event("to host", "event.synchronize"); }
  void synchronizeDevice(const DeviceIndex) const override { event("to host", "synchronize"); }
};
struct CUDAHooks : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  bool isPinnedPtr(const void* p) const override { return is_pinned(p); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinning; }
  Device getDeviceFromPtr(void*) const override { return GPU; }
};
// An alias on the host of a tensor of the device. It keeps the bytes, not their place in the
// device's memory: what a graph has recorded is free for others, as on a GPU.
Tensor host(const Tensor& t) {
  void* p = t.storage().mutable_data();
  auto kept = new std::shared_ptr<void>();
  { std::lock_guard<std::mutex> hold(guard); auto found = live.find(p); if (found != live.end()) *kept = found->second.bytes; }
  DataPtr data(p, kept, [](void* s) { delete (std::shared_ptr<void>*)s; }, Device(kCPU));
  auto s = c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), t.storage().nbytes(), std::move(data), c10::GetAllocator(kCPU), true);
  auto r = at::detail::make_tensor<TensorImpl>(Storage(s), DispatchKeySet(DispatchKey::CPU), t.dtype());
  r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return r;
}
Tensor like(Storage s, const Tensor& t) {
  auto r = at::detail::make_tensor<TensorImpl>(std::move(s), DispatchKeySet(KEY), t.dtype());
  r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return r;
}
DataPtr adopted(const Storage& s) {
  void* p = s.mutable_data();
  charge(p, s.nbytes(), std::shared_ptr<void>(p, [s](void*) {}));
  return DataPtr(p, p, &discharge, GPU);
}
Tensor on_device(const Tensor& t) {
  Storage s = t.storage();
  auto impl = c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), s.nbytes(), adopted(s), &memory, true);
  return like(Storage(impl), t);
}
template <class F> c10::IValue mapped(const c10::IValue& v, F f) {
  if (v.isTensor()) return v.toTensor().defined() ? f(v.toTensor()) : v;
  if (v.isTensorList()) { c10::List<Tensor> r; for (const Tensor& t : v.toTensorVector()) r.push_back(t.defined() ? f(t) : t); return r; }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> r;
    for (const std::optional<Tensor>& t : v.toOptionalTensorVector()) r.push_back(t && t->defined() ? std::optional<Tensor>(f(*t)) : t);
    return r;
  }
  return v;
}
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& schema = op.schema();
  std::string name = schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  ++operations;
  own();
  TORCH_CHECK_NOT_IMPLEMENTED(!absent.count(name), "Could not run '", name, "' with arguments from the 'CUDA' backend.");
  if (shapes.count(name)) event("shape", name);
  if (name == "aten::_local_scalar_dense") event("item", name);
  if (globalContext().deterministicAlgorithms() && random_order.count(name))
    TORCH_CHECK(globalContext().deterministicAlgorithmsWarnOnly(), name, " does not have a deterministic implementation");
  bool index = name.find("index_put") != std::string::npos || name.rfind("aten::index.", 0) == 0;
  bool conv = name.find("slow_conv2d") != std::string::npos;
  auto in = torch::jit::pop(*stack, schema.arguments().size());
  std::vector<std::pair<Tensor, Tensor>> pairs;
  auto to_host = [&](const Tensor& t) -> Tensor {
    if (!t.is_cuda()) return t;
    for (auto& [d, h] : pairs) if (d.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return h;
    Tensor h = host(t);
    // Two views of one storage stay so.
    for (auto& [d, o] : pairs) if (d.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) {
      h = at::detail::make_tensor<TensorImpl>(Storage(o.storage()), DispatchKeySet(DispatchKey::CPU), t.dtype());
      h.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    }
    // This kernel of the CPU takes a 1x1 weight in channels_last for something else.
    if (conv && h.is_contiguous()) h.unsafeGetTensorImpl()->set_sizes_contiguous(h.sizes());
    pairs.emplace_back(t, h);
    return h;
  };
  for (size_t i = 0; i < in.size(); ++i) {
    auto& v = in[i];
    mapped(v, [&](const Tensor& t) {
      if (t.is_cuda() || t.is_meta()) return t;
      bool allowed = (mixing.count(name) && t.dim() == 0) || (index && v.isOptionalTensorList()) || name.rfind("aten::", 0);
      TORCH_CHECK(allowed, "Expected all tensors to be on the same device, but got one on ", t.device(), " of shape ", t.sizes(), ", different from other tensors on cuda:0 (", name, ")");
      if (t.dim() && v.isOptionalTensorList()) event("to device", name);
      return t;
    });
    if (index && v.isOptionalTensorList() && name.find("put") != std::string::npos)
      for (const std::optional<Tensor>& t : v.toOptionalTensorVector())
        if (t && t->defined() && (t->scalar_type() == kBool || t->scalar_type() == kByte) && in[2].toTensor().dim()) event("shape", name);
    if (v.isGenerator()) TORCH_CHECK(false, "Expected a 'cuda' device type for generator but found 'cpu'");
    if (v.isDevice() && v.toDevice().is_cuda()) v = Device(kCPU);
    v = mapped(v, to_host);
  }
  for (size_t i = 0; i < in.size(); ++i) {
    auto alias = schema.arguments()[i].alias_info();
    mapped(in[i], [&](const Tensor& t) { use(t, alias && alias->isWrite(), name); return t; });
  }
  torch::jit::Stack work(in.begin(), in.end());
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &work);
  for (auto& [d, h] : pairs) {
    auto impl = d.unsafeGetTensorImpl();
    if (h.storage().data() != d.storage().data() && h.storage().nbytes() != d.storage().nbytes()) {
      auto s = d.storage().unsafeGetStorageImpl();
      Storage grown(h.storage());
      s->set_data_ptr(adopted(grown));
      s->set_nbytes(grown.nbytes());
    }
    if (!conv && (h.sizes() != d.sizes() || h.strides() != d.strides() || h.storage_offset() != d.storage_offset()))
      impl->set_sizes_and_strides(h.sizes(), h.strides(), h.storage_offset());
  }
  if (capturing) tapes[capturing].push_back({op, in, work});
  for (auto& v : work) {
    v = mapped(v, [&](const Tensor& t) -> Tensor {
      for (auto& [d, h] : pairs) if (h.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return d;
      for (auto& [d, h] : pairs) if (h.storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) return like(d.storage(), t);
      if (t.is_cuda()) return t;
      Tensor made = on_device(t);
      use(made, true, name);
      return made;
    });
    stack->push_back(std::move(v));
  }
}
Tensor empty_device(SymIntArrayRef size, std::optional<ScalarType> type, std::optional<Layout>, std::optional<Device>, std::optional<bool>, std::optional<MemoryFormat> format) {
  return at::detail::empty_generic_symint(size, &memory, DispatchKeySet(KEY), c10::dtype_or_default(type), format);
}
Tensor strided_device(SymIntArrayRef size, SymIntArrayRef stride, std::optional<ScalarType> type, std::optional<Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_symint_generic(size, stride, &memory, DispatchKeySet(KEY), c10::dtype_or_default(type));
}
Tensor& copy_device(Tensor& self, const Tensor& from, bool non_blocking) {
  ++operations;
  bool in = self.is_cuda(), out = from.is_cuda();
  if (out && !in && !(non_blocking && is_pinned(self.storage().data()))) event("to host", non_blocking ? "copy_ non_blocking" : "copy_");
  if (in && !out && !non_blocking) event("to device", "copy_");
  if (in && !out && non_blocking && !is_pinned(from.storage().data())) event("pageable", "copy_");
  own();
  use(from, false, "copy_");
  use(self, true, "copy_");
  Tensor h = in ? host(self) : self, f = out ? host(from) : from;
  h.copy_(f);
  if (out && !in && non_blocking && is_pinned(self.storage().data())) {
    // Until the host waits nothing has arrived.
    late.emplace_back(h, h.clone());
    memset(h.data_ptr(), 0, h.nbytes());
  }
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  if (capturing) tapes[capturing].push_back({op, {h, f, false}, {h}});
  return self;
}
void record_device(Tensor&, c10::Stream) {}
Tensor host_of(const Tensor& t) { use(t, true, "a collective"); return t.is_cuda() ? host(t.detach()) : t; }
void resize_storage(c10::Storage storage, int64_t n) {
  auto s = storage.unsafeGetStorageImpl();
  auto fresh = memory.allocate(n);
  if (n && s->nbytes()) memcpy(fresh.get(), s->data(), std::min((size_t)n, s->nbytes()));
  s->set_data_ptr(std::move(fresh));
  s->set_nbytes(n);
}
// Of a capture: all memory is put back, because it runs nothing.
std::vector<std::pair<void*, std::string>> kept;
void begin(int64_t id) {
  TORCH_CHECK(!capturing, "a capture is under way");
  tapes[id].clear(); kept.clear();
  for (auto& [p, block] : live) kept.emplace_back(p, std::string((char*)p, block.size));
  capturing = id;
}
void end() {
  for (auto& [p, bytes] : kept) if (live.count(p)) memcpy(p, bytes.data(), bytes.size());
  kept.clear(); capturing = 0;
}
void forget(int64_t id) { tapes.erase(id); }
void replay(int64_t id) {
  at::NoGradGuard no;
  for (auto& step : tapes.at(id)) {
    for (auto* part : {&step.in, &step.out})
      for (auto& v : *part) mapped(v, [&](const Tensor& t) { use(t, part == &step.out, step.op.schema().name()); return t; });
    torch::jit::Stack work(step.in.begin(), step.in.end());
    step.op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &work);
    for (size_t i = 0; i < work.size(); ++i) {
      if (!work[i].isTensor() || !work[i].toTensor().defined()) continue;
      Tensor a = step.out[i].toTensor(), b = work[i].toTensor();
      if (a.unsafeGetTensorImpl() != b.unsafeGetTensorImpl() && a.storage().data() != b.storage().data()) a.copy_(b);
    }
  }
}
int64_t in_pools() { int64_t sum = 0; for (auto& [key, amount] : amounts) sum += key.pool ? amount.reserved : 0; return sum; }
std::vector<int64_t> numbers() { return {now, peak, reserved, most_reserved, in_pools(), operations, limit}; }
void reset(int64_t new_limit) { peak = now; most_reserved = reserved; if (new_limit >= 0) limit = new_limit; }
void name_sets(std::string kind, std::vector<std::string> names) {
  auto& chosen = kind == "mixing" ? mixing : kind == "absent" ? absent : kind == "shapes" ? shapes : random_order;
  chosen = {names.begin(), names.end()};
}
C10_REGISTER_GUARD_IMPL(CUDA, Guard);
REGISTER_ALLOCATOR(kCUDA, &memory);
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty_device); m.impl("empty_strided", strided_device);
  m.impl("copy_", copy_device); m.impl("record_stream", record_device);
}
// torch has made its hooks already: their only content, the table of virtual functions, is replaced.
void hook() {
  static_assert(sizeof(CUDAHooks) == sizeof(CUDAHooksInterface));
  new ((void*)&at::detail::getCUDAHooks()) CUDAHooks(CUDAHooksArgs{});
}
} // namespace
TORCH_LIBRARY(simulated, m) {
  m.def("hook", hook);
  m.def("host", host_of); m.def("resize_storage", resize_storage); m.def("numbers", numbers); m.def("reset", reset);
  m.def("empty_cache", empty_cache); m.def("hold_pool", hold_pool); m.def("use_pool", use_pool);
  m.def("set_stream", set_stream); m.def("wait_for", wait_for); m.def("record_event", record_event); m.def("wait_event", wait_event); m.def("host_waits", host_waits);
  m.def("begin", begin); m.def("end", end); m.def("forget", forget); m.def("replay", replay); m.def("name_sets", name_sets);
}
