/* What a package has on one GPU: its weights, and plans for its kernels (launch.h, product.h), each made at its first call. */

enum { LIBRARY_STATUS = 100000, PORTABLE_CLUSTER = 8 };

struct OnGpu {
    Gpu *gpu;
    uintptr_t weights;
    void **modules; /* of each image; NULL: not loaded */
    void ***plans;  /* of each kernel's leaves; NULL: not made, `absent`: there is none for this architecture */
};

static char absent;

/* Adds to a sentence which error of the driver's it is about. */
static int refused_by_driver(PolytilePackage *self, Why *why, const char *what, int code)
{
    return fail(why, POLYTILE_DEVICE, "package %s: the GPU's driver refused to %s: %s (%d).", self->path, what, name_of(code), code);
}

static int copy_weights(PolytilePackage *self, OnGpu *on, Why *why)
{
    if (self->program->constants == 0)
        return 0;
    int code = cu.allocate_now(&on->weights, self->weights.size);
    if (code == 0)
        code = cu.to_device(on->weights, self->weights.data, self->weights.size);
    return code == 0 ? 0 : refused_by_driver(self, why, "hold the weights", code);
}

static void leave_gpu(PolytilePackage *self, OnGpu *on)
{
    void (*release[2])(void *) = {NULL, NULL};
    const PackagedProgram *program = self->program;
    if (enter(on->gpu) != 0)
        return;
    cu.synchronise();
    if (program->launcher != NO_LIBRARY)
        *(void **)&release[0] = dlsym(self->loaded[1 + program->launcher].handle, "polytile_release");
    if (program->multiplier != NO_LIBRARY)
        *(void **)&release[1] = dlsym(self->loaded[1 + program->multiplier].handle, "polytile_product_release");
    for (int i = 0; on->plans != NULL && i < program->kernels; i++) {
        for (int k = 0; on->plans[i] != NULL && k < program->kernel[i].leaf_count; k++) {
            void *plan = on->plans[i][k];
            if (plan == NULL || plan == &absent)
                continue;
            int multiplies = program->kernel[i].leaves[k].product != NULL;
            release[multiplies](plan);
            if (!multiplies && ((LaunchPlan *)plan)->error != NULL)
                cu.let_go_on_host((void *)((LaunchPlan *)plan)->error);
            free(plan);
        }
        free(on->plans[i]);
    }
    for (int i = 0; on->modules != NULL && i < program->images; i++)
        if (on->modules[i] != NULL)
            cu.unload_module(on->modules[i]);
    if (on->weights != 0)
        cu.let_go_now(on->weights);
    leave();
    free(on->plans);
    free(on->modules);
    free(on);
}

static OnGpu *new_on_gpu(PolytilePackage *self, Gpu *gpu, Why *why)
{
    const PackagedProgram *program = self->program;
    OnGpu *on = calloc(1, sizeof *on);
    int status = on == NULL ? RAISED : 0;
    if (on != NULL) {
        on->gpu = gpu;
        on->modules = calloc((size_t)program->images + 1, sizeof *on->modules);
        on->plans = calloc((size_t)program->kernels + 1, sizeof *on->plans);
        status = on->modules == NULL || on->plans == NULL ? RAISED : 0;
    }
    for (int i = 0; i < program->kernels && status == 0; i++)
        if ((on->plans[i] = calloc((size_t)program->kernel[i].leaf_count + 1, sizeof(void *))) == NULL)
            status = RAISED;
    if (status != 0)
        fail(why, POLYTILE_MEMORY, "package %s: there is no memory left.", self->path);
    else
        status = copy_weights(self, on, why);
    if (status == 0)
        return on;
    if (on != NULL)
        leave_gpu(self, on);
    return NULL;
}

/* What the package has on a device, which is current. */
static OnGpu *on_gpu(PolytilePackage *self, Gpu *gpu, Why *why)
{
    OnGpu *on = __atomic_load_n(&self->on[gpu->index], __ATOMIC_ACQUIRE);
    if (on != NULL)
        return on;
    pthread_mutex_lock(&self->making);
    if ((on = self->on[gpu->index]) == NULL && (on = new_on_gpu(self, gpu, why)) != NULL)
        __atomic_store_n(&self->on[gpu->index], on, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&self->making);
    return on;
}

/* ---- plans ---- */

/* Code for one architecture runs on it alone, but for that of 8.x, which later ones of 8.x run. */
static const PackagedBuild *build_for(const PackagedLeaf *leaf, int architecture)
{
    const PackagedBuild *found = NULL;
    for (int i = 0; i < leaf->build_count; i++) {
        const PackagedBuild *build = &leaf->builds[i];
        int runs = build->architecture == architecture
                   || (architecture / 10 == 8 && build->architecture / 10 == 8 && build->architecture < architecture);
        if (runs && (found == NULL || build->architecture > found->architecture))
            found = build;
    }
    return found;
}

static int load_function(PolytilePackage *self, OnGpu *on, const PackagedCode *code, Launch *launch, Why *why)
{
    enum { DYNAMIC_SHARED = 8, LARGE_CLUSTERS = 14, RELAXED = 2 };
    void **module = &on->modules[code->image];
    int mode = RELAXED, error = cu.exchange_mode(&mode); /* loading is no part of what another thread records */
    if (error == 0 && *module == NULL) {
        File file;
        if (find_file(self, self->program->image[code->image], &file, why) < 0)
            return RAISED;
        error = cu.load_module(module, file.data);
        if (self->archive.data == NULL)
            munmap((void *)file.data, file.size);
    }
    if (error == 0)
        error = cu.get_function(&launch->function, *module, code->symbol);
    if (error == 0)
        error = cu.set_function(launch->function, DYNAMIC_SHARED, (int)launch->shared);
    if (error == 0 && launch->cluster > PORTABLE_CLUSTER)
        error = cu.set_function(launch->function, LARGE_CLUSTERS, 1);
    cu.exchange_mode(&mode);
    return error == 0 ? 0 : refused_by_driver(self, why, code->symbol, error);
}

static void *launch_plan(PolytilePackage *self, OnGpu *on, const PackagedLeaf *leaf, Why *why)
{
    enum { PORTABLE = 1, MAPPED = 2 };
    const PackagedBuild *build = build_for(leaf, on->gpu->architecture);
    if (build == NULL)
        return &absent;
    size_t launches = (size_t)build->launch_count * sizeof(Launch);
    LaunchPlan *plan = calloc(1, sizeof *plan + launches);
    if (plan == NULL) {
        fail(why, POLYTILE_MEMORY, "package %s: there is no memory left.", self->path);
        return NULL;
    }
    Launch *own = memcpy(plan + 1, build->launches, launches);
    int status = 0;
    for (int i = 0; i < build->launch_count && status == 0; i++)
        status = load_function(self, on, &build->codes[i], &own[i], why);
    if (status == 0 && build->reports) {
        void *error = NULL;
        int code = cu.allocate_on_host(&error, sizeof(int32_t), PORTABLE | MAPPED);
        if (code != 0)
            status = refused_by_driver(self, why, "share memory of the host", code);
        else
            *(int32_t *)error = 0;
        plan->error = error;
    }
    if (status != 0) {
        free(plan);
        return NULL;
    }
    plan->context = on->gpu->context;
    plan->launches = own;
    plan->scratch = build->scratch;
    plan->device = on->gpu->index;
    plan->launch_count = build->launch_count;
    plan->scratch_count = build->scratch_count;
    return plan;
}

static void *product_plan(PolytilePackage *self, OnGpu *on, const PackagedLeaf *leaf, Why *why)
{
    void *handle = NULL;
    int status = cublaslt_of(on->gpu, &handle);
    ProductPlan *plan = status == 0 ? malloc(sizeof *plan) : NULL;
    if (plan == NULL) {
        fail(why, POLYTILE_DEVICE, "package %s: cuBLASLt does not start on GPU %d (status %d).", self->path, on->gpu->index, status);
        return NULL;
    }
    memcpy(plan, leaf->product, sizeof *plan);
    plan->api = (const ProductApi *)product_functions;
    plan->context = on->gpu->context;
    plan->handle = handle;
    plan->device = on->gpu->index;
    return plan;
}

/* The plan of a leaf; `absent` where it has none for this device; NULL and a sentence on failure. */
static void *plan_of(PolytilePackage *self, OnGpu *on, int kernel, int number, Why *why)
{
    void **place = &on->plans[kernel][number], *plan = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (plan != NULL)
        return plan;
    const PackagedLeaf *leaf = &self->program->kernel[kernel].leaves[number];
    pthread_mutex_lock(&self->making);
    if ((plan = *place) == NULL) {
        plan = leaf->product != NULL ? product_plan(self, on, leaf, why) : launch_plan(self, on, leaf, why);
        __atomic_store_n(place, plan, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&self->making);
    return plan;
}

/* What went wrong in a kernel that returned this negative code. */
static int failed_on_gpu(PolytilePackage *self, const PackagedKernel *kernel, long code, Why *why)
{
    enum { OUT_OF_MEMORY = 2 };
    if (code <= -LIBRARY_STATUS)
        return fail(why, POLYTILE_DEVICE, "kernel '%s': cuBLASLt refused to multiply (status %ld).", kernel->name, -code - LIBRARY_STATUS);
    if (code == -OUT_OF_MEMORY)
        return fail(why, POLYTILE_MEMORY, "kernel '%s': there is no memory left on the GPU.", kernel->name);
    return refused_by_driver(self, why, kernel->name, (int)-code);
}
