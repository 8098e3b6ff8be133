// What torch asks of a GPU while it traces on fake tensors, in builds of it without CUDA: one device, whose streams and events
// do nothing. Autograd takes the stream of each result, and has a thread for each device.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device GPU(c10::DeviceType::CUDA, 0);
const c10::Stream STREAM(c10::Stream::DEFAULT, GPU);

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return GPU.type(); }
    c10::Device exchangeDevice(c10::Device) const override { return GPU; }
    c10::Device getDevice() const override { return GPU; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const noexcept override { return STREAM; }
    c10::Stream exchangeStream(c10::Stream) const noexcept override { return STREAM; }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    void record(void **, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override {}
    void block(void *, const c10::Stream &) const override {}
};

struct CUDAHooks final : at::CUDAHooksInterface { // torch looks for a class of this name
    explicit CUDAHooks(at::CUDAHooksArgs) {}
    void init() const override {}
    bool hasCUDA() const override { return true; }
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

c10::impl::DeviceGuardImplRegistrar registrar(GPU.type(), new Guard);

} // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks);
}
