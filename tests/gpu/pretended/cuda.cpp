// The device of cuda.py: tensors of the dispatch key CUDA whose bytes lie in host memory.
#include <Python.h>
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <unistd.h>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
using namespace at;
namespace {
constexpr auto KEY = DispatchKey::CUDA;
const Device GPU(kCUDA, 0);
std::mutex guard;
std::unordered_map<void*, size_t> live, pinned;
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
  PyObject* module = PyImport_ImportModule("pretended_cuda");
  PyObject* done = module ? PyObject_CallMethod(module, "event", "ss", kind, name.c_str()) : nullptr;
  if (!done) PyErr_Print();
  Py_XDECREF(done); Py_XDECREF(module);
  PyGILState_Release(state);
}
void charge(void* p, size_t n) {
  std::lock_guard<std::mutex> hold(guard);
  TORCH_CHECK_WITH(OutOfMemoryError, !limit || now + (int64_t)n <= limit, "CUDA out of memory. Tried to allocate ", n, " bytes.");
  if (n) { live[p] = n; now += n; peak = std::max(peak, now); }
}
void discharge(void* p) {
  std::lock_guard<std::mutex> hold(guard);
  auto found = live.find(p);
  if (found != live.end()) { now -= found->second; live.erase(found); }
}
void release(void* p) { discharge(p); std::free(p); }
struct Memory : c10::Allocator {
  DataPtr allocate(size_t n) override {
    own();
    void* p = n ? std::aligned_alloc(64, (n + 63) / 64 * 64) : nullptr;
    charge(p, n);
    return {p, p, &release, GPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
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
thread_local int64_t stream = 0;
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
  void record(void** e, const Stream&, const DeviceIndex, const c10::EventFlag) const override { *e = (void*)1; }
  void block(void*, const Stream&) const override {}
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
// An alias on the host of a tensor of the device. It keeps the storage.
Tensor host(const Tensor& t) {
  auto kept = new Storage(t.storage());
  void* p = kept->mutable_data();
  DataPtr data(p, kept, [](void* s) { delete (Storage*)s; }, Device(kCPU));
  auto s = c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), kept->nbytes(), std::move(data), c10::GetAllocator(kCPU), true);
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
  charge(s.mutable_data(), s.nbytes());
  return DataPtr(s.mutable_data(), new Storage(s), [](void* kept) { discharge(((Storage*)kept)->mutable_data()); delete (Storage*)kept; }, GPU);
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
      return t.is_cuda() ? t : on_device(t);
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
  Tensor h = in ? host(self) : self, f = out ? host(from) : from;
  h.copy_(f);
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  if (capturing) tapes[capturing].push_back({op, {h, f, false}, {h}});
  return self;
}
void record_device(Tensor&, c10::Stream) {}
Tensor host_of(const Tensor& t) { return t.is_cuda() ? host(t.detach()) : t; }
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
  for (auto& [p, n] : live) kept.emplace_back(p, std::string((char*)p, n));
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
    torch::jit::Stack work(step.in.begin(), step.in.end());
    step.op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &work);
    for (size_t i = 0; i < work.size(); ++i) {
      if (!work[i].isTensor() || !work[i].toTensor().defined()) continue;
      Tensor a = step.out[i].toTensor(), b = work[i].toTensor();
      if (a.unsafeGetTensorImpl() != b.unsafeGetTensorImpl() && a.storage().data() != b.storage().data()) a.copy_(b);
    }
  }
}
std::vector<int64_t> numbers() { return {now, peak, operations, (int64_t)live.size()}; }
void reset(int64_t new_limit) { peak = now; if (new_limit >= 0) limit = new_limit; }
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
TORCH_LIBRARY(pretended, m) {
  m.def("hook", hook);
  m.def("host", host_of); m.def("resize_storage", resize_storage); m.def("numbers", numbers); m.def("reset", reset);
  m.def("begin", begin); m.def("end", end); m.def("forget", forget); m.def("replay", replay); m.def("name_sets", name_sets);
}
