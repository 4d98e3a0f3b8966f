// One convolution through oneDNN, as a shared library that onednn.py loads. setup.sh builds it.
//
// oneDNN computes on data in a layout of its own. A run therefore reorders the input from the model's layout where
// they differ, computes, and reorders the result back. Three layouts are built and timed: the one that oneDNN
// proposes, channels last, and channels first. The fastest is kept.
//
// The package's library runs on SYCL's CPU device, so memory is allocated as SYCL's unified shared memory.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <oneapi/dnnl/dnnl.hpp>
#include <oneapi/dnnl/dnnl_sycl.h>

using dnnl::memory;

extern "C" {
// Mirrored by onednn.py. Arrays have `rank` entries, outermost axis first. dilations are distances between taps.
// end_pads may be negative: an output padding is taken off them.
struct Geometry {
    int64_t transposed, channels_last, rank, batch, in_channels, out_channels, group;
    int64_t kernel[3], strides[3], dilations[3], begin_pads[3], end_pads[3], input[3], output[3];
};
}

namespace {

constexpr int MAX_RANK = 3;
constexpr int TIMED_RUNS = 5;

using Tag = memory::format_tag;
constexpr Tag CHANNELS_FIRST[MAX_RANK] = {Tag::ncw, Tag::nchw, Tag::ncdhw};
constexpr Tag CHANNELS_LAST[MAX_RANK] = {Tag::nwc, Tag::nhwc, Tag::ndhwc};
constexpr Tag FILTER[MAX_RANK] = {Tag::oiw, Tag::oihw, Tag::oidhw};
constexpr Tag GROUPED_FILTER[MAX_RANK] = {Tag::goiw, Tag::goihw, Tag::goidhw};

struct Device {
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};

    static Device &get() {
        static Device device;
        return device;
    }

    memory allocate(const memory::desc &desc) {
        dnnl_memory_t handle;
        dnnl::error::wrap_c_api(dnnl_sycl_interop_memory_create(&handle, desc.get(), engine.get(), dnnl_sycl_interop_usm,
                                                                DNNL_MEMORY_ALLOCATE),
                                "no memory");
        return memory(handle);
    }

    memory copy_of(const memory::desc &desc, const float *values) {
        memory result = allocate(desc);
        std::memcpy(result.get_data_handle(), values, desc.get_size());
        return result;
    }

    // Returns the values in another layout, or the same memory where the layouts agree.
    memory in_layout(const memory &from, const memory::desc &desc) {
        if (from.get_desc() == desc) return from;
        memory to = allocate(desc);
        dnnl::reorder(from, to).execute(stream, const_cast<memory &>(from), to);
        stream.wait();
        return to;
    }
};

struct Layer {
    dnnl::primitive primitive;
    // The model's input and output, and the same in the primitive's layout.
    memory x, y, inner_x, inner_y, weights, bias;
    std::optional<dnnl::reorder> reorder_x, reorder_y;
    std::string description;

    void run() {
        dnnl::stream &stream = Device::get().stream;
        if (reorder_x) reorder_x->execute(stream, x, inner_x);
        primitive.execute(stream, {{DNNL_ARG_SRC, inner_x}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_BIAS, bias},
                                   {DNNL_ARG_DST, inner_y}});
        if (reorder_y) reorder_y->execute(stream, inner_y, y);
        stream.wait();
    }

    double fastest_ns() {
        double best = 1e30;
        run();
        for (int at = 0; at < TIMED_RUNS; at++) {
            auto start = std::chrono::steady_clock::now();
            run();
            std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
            best = std::min(best, time.count());
        }
        return best;
    }
};

template <typename Descriptor> void describe(Layer &layer, const Descriptor &descriptor, const memory &weights) {
    Device &device = Device::get();
    layer.description = descriptor.impl_info_str();
    layer.weights = device.in_layout(weights, descriptor.weights_desc());
    auto inner = [&](const memory &outer, const memory::desc &desc) {
        return outer.get_desc() == desc ? outer : device.allocate(desc);
    };
    layer.inner_x = inner(layer.x, descriptor.src_desc());
    layer.inner_y = inner(layer.y, descriptor.dst_desc());
    if (layer.inner_x != layer.x) layer.reorder_x.emplace(layer.x, layer.inner_x);
    if (layer.inner_y != layer.y) layer.reorder_y.emplace(layer.inner_y, layer.y);
}

std::unique_ptr<Layer> build(const Geometry &g, Tag layout, const float *x, const float *w, const float *bias) {
    Device &device = Device::get();
    const auto f32 = memory::data_type::f32;
    const int at = int(g.rank) - 1;
    auto sizes = [&](const int64_t *values) { return memory::dims(values, values + g.rank); };
    auto shape = [&](memory::dims leading, const int64_t *values) {
        leading.insert(leading.end(), values, values + g.rank);
        return leading;
    };
    const auto in = shape({g.batch, g.in_channels}, g.input), out = shape({g.batch, g.out_channels}, g.output);
    const int64_t inputs = g.in_channels / g.group, outputs = g.out_channels / g.group;
    const auto filter = shape(g.group > 1 ? memory::dims{g.group, outputs, inputs} : memory::dims{outputs, inputs}, g.kernel);
    const Tag outer = (g.channels_last ? CHANNELS_LAST : CHANNELS_FIRST)[at];

    auto layer = std::make_unique<Layer>();
    layer->x = device.copy_of({in, f32, outer}, x);
    layer->y = device.allocate({out, f32, outer});
    layer->bias = device.copy_of({{g.out_channels}, f32, Tag::a}, bias);
    const memory weights = device.copy_of({filter, f32, (g.group > 1 ? GROUPED_FILTER : FILTER)[at]}, w);

    auto dilations = sizes(g.dilations);
    // oneDNN counts the elements between two taps.
    for (auto &dilation : dilations) dilation -= 1;
    const memory::desc inner_x(in, f32, layout), inner_y(out, f32, layout), any(filter, f32, Tag::any);
    const auto inference = dnnl::prop_kind::forward_inference;
    if (g.transposed) {
        dnnl::deconvolution_forward::primitive_desc descriptor(
            device.engine, inference, dnnl::algorithm::deconvolution_direct, inner_x, any, layer->bias.get_desc(), inner_y,
            sizes(g.strides), dilations, sizes(g.begin_pads), sizes(g.end_pads));
        describe(*layer, descriptor, weights);
        layer->primitive = dnnl::deconvolution_forward(descriptor);
    } else {
        dnnl::convolution_forward::primitive_desc descriptor(
            device.engine, inference, dnnl::algorithm::convolution_auto, inner_x, any, layer->bias.get_desc(), inner_y,
            sizes(g.strides), dilations, sizes(g.begin_pads), sizes(g.end_pads));
        describe(*layer, descriptor, weights);
        layer->primitive = dnnl::convolution_forward(descriptor);
    }
    return layer;
}

std::unique_ptr<Layer> fastest(const Geometry &g, const float *x, const float *weights, const float *bias) {
    if (g.rank < 1 || g.rank > MAX_RANK) throw std::invalid_argument("rank=" + std::to_string(g.rank) + ", expected 1 to 3");
    const struct {
        const char *name;
        Tag tag;
    } layouts[] = {{"proposed", Tag::any}, {"channels last", CHANNELS_LAST[g.rank - 1]}, {"channels first", CHANNELS_FIRST[g.rank - 1]}};
    std::unique_ptr<Layer> best;
    double least = 1e30;
    std::string failure;
    for (const auto &layout : layouts) {
        try {
            auto layer = build(g, layout.tag, x, weights, bias);
            const double time = layer->fastest_ns();
            if (time < least) {
                layer->description += std::string(", layout ") + layout.name;
                least = time;
                best = std::move(layer);
            }
        } catch (const dnnl::error &error) {
            failure = error.what();
        }
    }
    if (!best) throw std::runtime_error(failure);
    return best;
}

thread_local std::string last_error;

} // namespace

extern "C" {

// Returns a layer, or null after a failure. The arrays are copied.
Layer *onednn_create(const Geometry *geometry, const float *x, const float *weights, const float *bias) {
    try {
        return fastest(*geometry, x, weights, bias).release();
    } catch (const std::exception &error) {
        last_error = error.what();
        return nullptr;
    }
}

const char *onednn_error() { return last_error.c_str(); }

const char *onednn_description(const Layer *layer) { return layer->description.c_str(); }

// Returns 0, or 1 after a failure.
int onednn_run(Layer *layer) {
    try {
        layer->run();
        return 0;
    } catch (const std::exception &error) {
        last_error = error.what();
        return 1;
    }
}

// The output of the last run, in the model's layout.
const float *onednn_output(const Layer *layer) { return static_cast<const float *>(layer->y.get_data_handle()); }

void onednn_destroy(Layer *layer) { delete layer; }
}
