/* Packages: opens one, without Python or torch: its files, its shared objects, its weights. */

/* ---- sentences ---- */

typedef struct {
    char *text;
    size_t room;
    int status;
} Why;

static int fail(Why *why, int status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (why->room > 0)
        vsnprintf(why->text, why->room, format, values);
    va_end(values);
    why->status = status;
    return RAISED;
}

/* ---- files: a folder, or an archive (zip) whose files are stored as they are ---- */

typedef struct {
    const char *path;
    char *data; /* of the archive; NULL: a folder */
    size_t size;
} Archive;

typedef struct {
    const char *data;
    size_t size;
    uint32_t checksum; /* of a file in an archive */
} File;

static int map_file(const char *path, File *file)
{
    struct stat status;
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0)
        return -1;
    file->data = NULL;
    if (fstat(opened, &status) == 0 && status.st_size > 0) {
        void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, opened, 0);
        file->data = data == MAP_FAILED ? NULL : data;
        file->size = (size_t)status.st_size;
    }
    close(opened);
    return file->data == NULL ? -1 : 0;
}

/* A number of so many bytes, the lowest first. */
static uint64_t number_at(const char *data, int bytes)
{
    uint64_t number = 0;
    for (int i = bytes - 1; i >= 0; i--)
        number = number << 8 | (unsigned char)data[i];
    return number;
}

typedef struct {
    uint64_t begin, count;
} Directory;

/* Where an archive says which files it has. */
static int find_directory(const Archive *archive, Directory *found)
{
    enum { END = 22, LOCATOR = 20, END_64 = 56, LONGEST_COMMENT = 65535 };
    const char *data = archive->data;
    for (size_t back = END; back <= archive->size && back <= END + LONGEST_COMMENT; back++) {
        const char *end = data + archive->size - back;
        if (number_at(end, 4) != 0x06054b50)
            continue;
        *found = (Directory){number_at(end + 16, 4), number_at(end + 10, 2)};
        if (back + LOCATOR <= archive->size && number_at(end - LOCATOR, 4) == 0x07064b50) {
            uint64_t at = number_at(end - LOCATOR + 8, 8);
            if (at > archive->size - END_64 || number_at(data + at, 4) != 0x06064b50)
                return -1;
            *found = (Directory){number_at(data + at + 48, 8), number_at(data + at + 32, 8)};
        }
        return found->begin < archive->size ? 0 : -1;
    }
    return -1;
}

/* The numbers of an entry that do not fit 32 bits: each stands in the extra field instead, in this order. */
static void read_wide_numbers(const char *extra, uint64_t bytes, uint64_t *numbers, int count)
{
    enum { WIDE = 1 };
    for (uint64_t at = 0, length; at + 4 <= bytes; at += 4 + length) {
        const char *next = extra + at + 4, *end = extra + bytes;
        length = number_at(extra + at + 2, 2);
        if (number_at(extra + at, 2) != WIDE)
            continue;
        for (int i = 0; i < count; i++)
            if (numbers[i] == UINT32_MAX && next + 8 <= end) {
                numbers[i] = number_at(next, 8);
                next += 8;
            }
    }
}

static int find_in_archive(const Archive *archive, const char *name, File *file)
{
    enum { ENTRY = 46, LOCAL = 30 };
    Directory directory;
    if (find_directory(archive, &directory) < 0)
        return -1;
    uint64_t at = directory.begin;
    for (uint64_t i = 0; i < directory.count && at + ENTRY <= archive->size; i++) {
        const char *entry = archive->data + at;
        uint64_t named = number_at(entry + 28, 2), extra = number_at(entry + 30, 2), comment = number_at(entry + 32, 2);
        uint64_t next = at + ENTRY + named + extra + comment;
        if (number_at(entry, 4) != 0x02014b50 || next > archive->size)
            return -1;
        at = next;
        if (named != strlen(name) || memcmp(entry + ENTRY, name, named) != 0)
            continue;
        uint64_t numbers[] = {number_at(entry + 24, 4), number_at(entry + 20, 4), number_at(entry + 42, 4)};
        read_wide_numbers(entry + ENTRY + named, extra, numbers, 3);
        uint64_t size = numbers[0], offset = numbers[2];
        if (number_at(entry + 10, 2) != 0 || offset > archive->size - LOCAL)
            return -1;
        const char *local = archive->data + offset;
        uint64_t begin = offset + LOCAL + number_at(local + 26, 2) + number_at(local + 28, 2);
        if (begin > archive->size || size > archive->size - begin)
            return -1;
        *file = (File){archive->data + begin, size, (uint32_t)number_at(entry + 16, 4)};
        return 0;
    }
    return -1;
}

static uint32_t checksum_of(const char *data, size_t size)
{
    uint32_t table[256], sum = UINT32_MAX;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320u : 0);
    }
    for (size_t i = 0; i < size; i++)
        sum = table[(sum ^ (unsigned char)data[i]) & 255] ^ sum >> 8;
    return ~sum;
}

static int open_archive(Archive *archive, const char *path, Why *why)
{
    struct stat status;
    File file;
    *archive = (Archive){path, NULL, 0};
    if (stat(path, &status) != 0)
        return fail(why, POLYTILE_REFUSED, "package %s: %s.", path, strerror(errno));
    if (S_ISDIR(status.st_mode))
        return 0;
    if (map_file(path, &file) < 0)
        return fail(why, POLYTILE_REFUSED, "package %s cannot be read.", path);
    *archive = (Archive){path, (char *)file.data, file.size};
    Directory directory;
    if (find_directory(archive, &directory) == 0)
        return 0;
    munmap(archive->data, archive->size);
    return fail(why, POLYTILE_REFUSED, "package %s is no package, or only the beginning of one.", path);
}

/* ---- shared objects ---- */

typedef struct {
    void *handle;
    int file; /* that stays open, as the loader tells files apart by their numbers; -1: none */
} Loaded;

typedef struct OnGpu OnGpu;

struct PolytilePackage {
    char *path;
    Archive archive;
    Loaded *loaded; /* the program and its libraries */
    int loaded_count;
    const PackagedProgram *program;
    Kernel **entries; /* of each kernel's leaves */
    Kernel launch, multiply; /* of a GPU's, by plans */
    File weights;
    int maps_weights; /* 0: they are a file of their own */
    ArenaPlans plans;
    pthread_mutex_t lock; /* of the plans */
    OnGpu *on[MOST_GPUS]; /* NULL: no call has run there */
    pthread_mutex_t making; /* covers what is made on GPUs */
};

static void leave_gpu(PolytilePackage *self, OnGpu *on);

static int full_path(PolytilePackage *self, const char *name, char *path, size_t room)
{
    return (size_t)snprintf(path, room, "%s/%s", self->path, name) < room ? 0 : -1;
}

/* A file of an archive as a file of its own, which has no name. -1 on failure. */
static int unpacked_file(File file)
{
    int opened = memfd_create("polytile", MFD_CLOEXEC);
    for (size_t written = 0; opened >= 0 && written < file.size;) {
        ssize_t count = write(opened, file.data + written, file.size - written);
        if (count < 0 && errno != EINTR) {
            close(opened);
            return -1;
        }
        written += count > 0 ? (size_t)count : 0;
    }
    return opened;
}

/* The content of a file of the package, which whoever asks unmaps if it is no archive. */
static int find_file(PolytilePackage *self, const char *name, File *file, Why *why)
{
    char path[PATH_MAX];
    int found = self->archive.data != NULL ? find_in_archive(&self->archive, name, file)
                : full_path(self, name, path, sizeof path) < 0 ? -1
                                                               : map_file(path, file);
    if (found == 0 && (self->archive.data == NULL || checksum_of(file->data, file->size) == file->checksum))
        return 0;
    return fail(why, POLYTILE_REFUSED, "package %s: its file %s is missing or damaged. Write the package again.", self->path, name);
}

/* Loads a shared object of the package. */
static void *load(PolytilePackage *self, const char *name, Why *why)
{
    char path[PATH_MAX];
    int opened = -1;
    if (self->archive.data != NULL) {
        File file;
        if (find_file(self, name, &file, why) < 0)
            return NULL;
        if ((opened = unpacked_file(file)) < 0) {
            fail(why, POLYTILE_REFUSED, "package %s: %s cannot be unpacked: %s.", self->path, name, strerror(errno));
            return NULL;
        }
        snprintf(path, sizeof path, "/proc/self/fd/%d", opened);
    } else if (full_path(self, name, path, sizeof path) < 0) {
        fail(why, POLYTILE_REFUSED, "package %s: the path is too long.", self->path);
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *trouble = dlerror();
        const char *mend = strstr(trouble, "GOMP") || strstr(trouble, "omp_")
                               ? " Install an OpenMP runtime (Debian, Ubuntu: apt install libgomp1)."
                               : "";
        fail(why, POLYTILE_REFUSED, "package %s: %s cannot be loaded: %s.%s", self->path, name, trouble, mend);
        if (opened >= 0)
            close(opened);
        return NULL;
    }
    Loaded *loaded = realloc(self->loaded, (size_t)(self->loaded_count + 1) * sizeof *loaded);
    if (loaded == NULL) {
        fail(why, POLYTILE_MEMORY, "package %s: there is no memory left.", self->path);
        dlclose(handle);
        return NULL;
    }
    self->loaded = loaded;
    loaded[self->loaded_count++] = (Loaded){handle, opened};
    return handle;
}

/* Kernels that run on several threads use an OpenMP runtime: that of the process, or one that is installed. */
static void find_threads(void)
{
    static const char *const names[] = {"libgomp.so.1", "libomp.so", "libomp.so.5", "libiomp5.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names && dlsym(RTLD_DEFAULT, "GOMP_parallel") == NULL; i++)
        dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
}

/* ---- is this the machine that it was made for? ---- */

/* Whether the words have this one, underscores left out on both sides. */
static int has_word(const char *words, const char *word, size_t length)
{
    while (*words != '\0') {
        words += strspn(words, " \t\n");
        size_t i = 0, own = strcspn(words, " \t\n"), at = 0;
        for (; at < own; at++)
            if (words[at] != '_' && (i >= length || words[at] != word[i++]))
                break;
        if (own > 0 && at == own && i == length)
            return 1;
        words += own;
    }
    return 0;
}

/* The line of /proc/cpuinfo that lists what the processor can do; NULL: nothing says. */
static char *read_features(void)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char *line = NULL;
    size_t room = 0;
    while (file != NULL && getline(&line, &room, file) >= 0)
        if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0) {
            fclose(file);
            return line;
        }
    free(line);
    if (file != NULL)
        fclose(file);
    return NULL;
}

static int check_machine(PolytilePackage *self, Why *why)
{
    struct utsname here;
    const PackagedProgram *program = self->program;
    if (uname(&here) == 0 && strcmp(here.machine, program->machine) != 0)
        return fail(why, POLYTILE_REFUSED, "package %s was made for a %s processor, and this one is %s. Write it again on such a machine.",
                    self->path, program->machine, here.machine);
    char *features = read_features();
    const char *word = features == NULL ? "" : program->features;
    int status = 0;
    while (status == 0 && *(word += strspn(word, " ")) != '\0') {
        size_t length = strcspn(word, " ");
        if (!has_word(strchr(features, ':') + 1, word, length))
            status = fail(why, POLYTILE_REFUSED,
                          "package %s was made for a processor with %.*s, which this one lacks. Write it again on such a machine.",
                          self->path, (int)length, word);
        word += length;
    }
    free(features);
    return status;
}

/* ---- opening ---- */

typedef void (*Bind)(long slot, void *core);

static int bind_leaf(PolytilePackage *self, const PackagedLeaf *leaf, Kernel *entry, Why *why)
{
    if (leaf->library == NO_LIBRARY)
        return 0;
    void *own = self->loaded[1 + leaf->library].handle, *found = dlsym(own, leaf->symbol);
    if (found != NULL && leaf->core != NO_LIBRARY) {
        void *bind = dlsym(own, leaf->bind), *core = dlsym(self->loaded[1 + leaf->core].handle, leaf->core_symbol);
        if (bind == NULL || core == NULL)
            found = NULL;
        else
            ((Bind)bind)(leaf->slot, core);
    }
    *entry = (Kernel)found;
    return found != NULL ? 0
                         : fail(why, POLYTILE_REFUSED, "package %s: %s lacks the function %s. Write the package again.", self->path,
                                self->program->library[leaf->library], leaf->symbol);
}

static int bind_kernels(PolytilePackage *self, Why *why)
{
    const PackagedProgram *program = self->program;
    self->entries = calloc((size_t)program->kernels + 1, sizeof *self->entries);
    for (int i = 0; i < program->kernels; i++) {
        const PackagedKernel *kernel = &program->kernel[i];
        if (self->entries == NULL || (self->entries[i] = calloc((size_t)kernel->leaf_count + 1, sizeof(Kernel))) == NULL)
            return fail(why, POLYTILE_MEMORY, "package %s: there is no memory left.", self->path);
        for (int k = 0; k < kernel->leaf_count; k++)
            if (bind_leaf(self, &kernel->leaves[k], &self->entries[i][k], why) < 0)
                return RAISED;
    }
    return 0;
}

static int find_weights(PolytilePackage *self, Why *why)
{
    static const char name[] = "weights.safetensors";
    char path[PATH_MAX];
    if (self->program->constants == 0)
        return 0;
    int found = self->archive.data == NULL ? -1 : find_in_archive(&self->archive, name, &self->weights);
    int apart = snprintf(path, sizeof path, self->archive.data == NULL ? "%s/%s" : "%s.safetensors", self->path, name) < PATH_MAX;
    if (found < 0 && apart)
        found = self->maps_weights = map_file(path, &self->weights);
    for (int i = 0; found == 0 && i < self->program->constants; i++) {
        const PackagedConstant *constant = &self->program->constant[i];
        if ((uint64_t)constant->offset + (uint64_t)constant->bytes > self->weights.size)
            found = -1;
    }
    return found == 0 ? 0 : fail(why, POLYTILE_REFUSED, "package %s: its file %s is missing or too short.", self->path, name);
}

/* The driver, and the libraries by which a GPU's kernels are launched and products multiplied. */
static int bind_gpu(PolytilePackage *self, Why *why)
{
    const PackagedProgram *program = self->program;
    const char *trouble;
    if (program->device_type != GPU_DEVICE)
        return 0;
    if (start_driver(&trouble) < 0)
        return fail(why, POLYTILE_DEVICE, "package %s is for a GPU: %s.", self->path, trouble);
    if (program->multiplier != NO_LIBRARY && open_cublaslt(program->cublaslt) < 0)
        return fail(why, POLYTILE_REFUSED,
                    "package %s multiplies by cuBLASLt, and %s cannot be loaded. Install CUDA's cuBLAS of this version, and name its "
                    "folder in LD_LIBRARY_PATH; or package with options={\"sources\": \"triton\"}.",
                    self->path, program->cublaslt);
    if (program->multiplier != NO_LIBRARY)
        *(void **)&self->multiply = dlsym(self->loaded[1 + program->multiplier].handle, "polytile_product_cublaslt");
    void (*configure)(const void *) = NULL;
    void *const functions[] = {(void *)cu.launch_kernel, (void *)cu.get_context, (void *)cu.push_context, (void *)cu.pop_context,
                               (void *)cu.capture_info, (void *)cu.set_bytes, (void *)stream_here, (void *)new_block,
                               (void *)delete_block, (void *)block_data, (void *)cu.describe};
    if (program->launcher != NO_LIBRARY) {
        *(void **)&self->launch = dlsym(self->loaded[1 + program->launcher].handle, "polytile_launch");
        *(void **)&configure = dlsym(self->loaded[1 + program->launcher].handle, "polytile_configure");
        configure(functions);
    }
    return 0;
}

static int open_program(PolytilePackage *self, Why *why)
{
    if (open_archive(&self->archive, self->path, why) < 0)
        return RAISED;
    void *handle = load(self, "program.so", why);
    if (handle == NULL)
        return RAISED;
    const PackagedProgram *program = dlsym(handle, "polytile_packaged_program");
    if (program == NULL || program->abi != PACKAGE_ABI)
        return fail(why, POLYTILE_REFUSED,
                    "package %s has format %ld, and this runtime reads format %d. Write it again with this version of polytile.",
                    self->path, program == NULL ? 0L : (long)program->abi, PACKAGE_ABI);
    self->program = program;
    if (check_machine(self, why) < 0)
        return RAISED;
    find_threads();
    for (int i = 0; i < program->libraries; i++)
        if (load(self, program->library[i], why) == NULL)
            return RAISED;
    return bind_kernels(self, why) < 0 || bind_gpu(self, why) < 0 || find_weights(self, why) < 0 ? RAISED : 0;
}

void polytile_close(PolytilePackage *self)
{
    for (int i = 0; i < MOST_GPUS; i++)
        if (self->on[i] != NULL)
            leave_gpu(self, self->on[i]);
    for (int i = 0; self->entries != NULL && i < self->program->kernels; i++)
        free(self->entries[i]);
    free(self->entries);
    if (self->maps_weights == 0 && self->weights.data != NULL)
        munmap((void *)self->weights.data, self->weights.size);
    while (self->loaded_count-- > 0) { /* the program, which has all the tables, is the last */
        dlclose(self->loaded[self->loaded_count].handle);
        if (self->loaded[self->loaded_count].file >= 0)
            close(self->loaded[self->loaded_count].file);
    }
    if (self->archive.data != NULL)
        munmap(self->archive.data, self->archive.size);
    free_plans(&self->plans);
    pthread_mutex_destroy(&self->lock);
    pthread_mutex_destroy(&self->making);
    free(self->loaded);
    free(self->path);
    free(self);
}

PolytilePackage *polytile_open(const char *path, char *text, size_t room)
{
    Why why = {text, room, 0};
    PolytilePackage *self = calloc(1, sizeof *self);
    if (self == NULL || (self->path = strdup(path)) == NULL) {
        free(self);
        fail(&why, POLYTILE_MEMORY, "package %s: there is no memory left.", path);
        return NULL;
    }
    pthread_mutex_init(&self->lock, NULL);
    pthread_mutex_init(&self->making, NULL);
    self->maps_weights = -1;
    if (open_program(self, &why) == 0)
        return self;
    polytile_close(self);
    return NULL;
}

int polytile_device_type(const PolytilePackage *self)
{
    return self->program->device_type;
}

int polytile_inputs(const PolytilePackage *self)
{
    return self->program->inputs;
}

int polytile_outputs(const PolytilePackage *self)
{
    return self->program->outputs;
}

const char *polytile_input_name(const PolytilePackage *self, int input)
{
    return self->program->input[input].name;
}
