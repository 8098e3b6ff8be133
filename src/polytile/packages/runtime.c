/* Packages: opens one, and makes its calls. The functions of the Api (runtime/program.h) on plain memory, without Python or torch.

   A tensor is an address, a layout and the memory that it keeps alive. What was given to a call and what the package holds is
   borrowed, and copied where it is a result. All state of a call is in its Frame, so that calls may run side by side. */

enum { CPU_DEVICE = 1, MAX_SYMBOL = 128 };

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

struct PolytilePackage {
    char *path;
    Archive archive;
    Loaded *loaded; /* the program and its libraries */
    int loaded_count;
    const PackagedProgram *program;
    Kernel **entries; /* of each kernel's leaves */
    File weights;
    int maps_weights; /* 0: they are a file of their own */
    ArenaPlans plans;
    pthread_mutex_t lock; /* of the plans */
};

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

/* Loads a shared object of the package. */
static void *load(PolytilePackage *self, const char *name, Why *why)
{
    char path[PATH_MAX];
    int opened = -1;
    if (self->archive.data != NULL) {
        File file;
        if (find_in_archive(&self->archive, name, &file) < 0 || checksum_of(file.data, file.size) != file.checksum) {
            fail(why, POLYTILE_REFUSED, "package %s: its file %s is missing or damaged. Write the package again.", self->path, name);
            return NULL;
        }
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
    return bind_kernels(self, why) < 0 || find_weights(self, why) < 0 ? RAISED : 0;
}

void polytile_close(PolytilePackage *self)
{
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
    self->maps_weights = -1;
    if (open_program(self, &why) == 0)
        return self;
    polytile_close(self);
    return NULL;
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

/* ---- memory and tensors ---- */

typedef struct {
    int users;
    char *data;
} Memory;

typedef struct {
    char *data;
    Memory *memory; /* NULL: borrowed, or nothing is there */
    Layout layout;
    int input; /* which one was given */
} Tensor;

struct Frame {
    PolytilePackage *package;
    const DLTensor *const *given;
    DLManagedTensor **results;
    int result_count;
    Tensor *tensors;  /* the last one is the arena */
    int64_t *offsets; /* of memories in the arena */
    int64_t *strides; /* of inputs that came without any, one after the other */
    Why why;
};

enum { TYPES = 16, BYTES = 0, INT64 = 4 };

static const DLDataType types[TYPES] = { /* by torch's numbers; no bits: packages have none */
    {1, 8, 1}, {0, 8, 1}, {0, 16, 1}, {0, 32, 1}, {0, 64, 1}, {2, 16, 1}, {2, 32, 1}, {2, 64, 1},
    {5, 32, 1}, {5, 64, 1}, {5, 128, 1}, {6, 8, 1}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {4, 16, 1},
};

static int64_t element_bytes(const Layout *layout)
{
    return types[layout->dtype].bits / 8;
}

static Memory *new_memory(int64_t bytes)
{
    Memory *memory = malloc(sizeof *memory);
    if (memory != NULL) {
        *memory = (Memory){1, aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64 + 64)};
        if (memory->data == NULL) {
            free(memory);
            memory = NULL;
        }
    }
    return memory;
}

static Memory *shared(Memory *memory)
{
    if (memory != NULL)
        __atomic_add_fetch(&memory->users, 1, __ATOMIC_RELAXED);
    return memory;
}

static void drop(Memory *memory)
{
    if (memory != NULL && __atomic_sub_fetch(&memory->users, 1, __ATOMIC_ACQ_REL) == 0) {
        free(memory->data);
        free(memory);
    }
}

/* `tensor` becomes `new`, whose memory it takes over. */
static void become(Tensor *tensor, Tensor new)
{
    Memory *before = tensor->memory;
    *tensor = new;
    drop(before);
}

static int allocate_tensor(Frame *frame, int number, const Layout *layout, int device_type, int device)
{
    int64_t bytes = bytes_of(layout, element_bytes(layout), 1);
    Memory *memory = new_memory(bytes);
    (void)device_type, (void)device;
    if (memory == NULL)
        return fail(&frame->why, POLYTILE_MEMORY, "package %s: there is no memory for %ld bytes.", frame->package->path, (long)bytes);
    become(&frame->tensors[number], (Tensor){bytes == 0 ? NULL : memory->data, memory, *layout, -1});
    return 0;
}

/* Copies elements from one layout of `rank` sizes to another of the same sizes. */
static void copy_elements(char *to, const char *from, int64_t rank, const int64_t *sizes, const int64_t *to_strides,
                          const int64_t *from_strides, int64_t bytes)
{
    if (rank == 0) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (int64_t i = 0; i < sizes[0]; i++)
        copy_elements(to + i * to_strides[0] * bytes, from + i * from_strides[0] * bytes, rank - 1, sizes + 1, to_strides + 1,
                      from_strides + 1, bytes);
}

/* ---- the Api: arguments ---- */

static int take_tensor(Frame *frame, int argument, int number)
{
    const PackagedInput *input = &frame->package->program->input[argument];
    const DLTensor *given = frame->given[argument];
    DLDataType type = types[input->dtype];
    Why *why = &frame->why;
    if (given->device.device_type != CPU_DEVICE)
        return fail(why, POLYTILE_REFUSED, "input '%s' is not in the processor's memory, as this package needs it.", input->name);
    if (given->dtype.code != type.code || given->dtype.bits != type.bits || given->dtype.lanes != 1)
        return fail(why, POLYTILE_REFUSED, "input '%s' has another element type (DLPack's code %d, %d bits) than the package takes (%d, %d).",
                    input->name, given->dtype.code, given->dtype.bits, type.code, type.bits);
    if (given->ndim != input->rank)
        return fail(why, POLYTILE_REFUSED, "input '%s' has %d dimensions; the package takes %d.", input->name, given->ndim, input->rank);
    const int64_t *strides = given->strides;
    if (strides == NULL) {
        int64_t step = 1;
        for (int i = given->ndim - 1; i >= 0; i--) {
            frame->strides[i] = step;
            step *= given->shape[i];
        }
        strides = frame->strides;
        frame->strides += given->ndim;
    }
    Layout layout = {given->ndim, given->shape, strides, input->dtype};
    become(&frame->tensors[number], (Tensor){(char *)given->data + given->byte_offset, NULL, layout, argument});
    return 0;
}

static int take_integer(Frame *frame, int argument, int64_t *integer)
{
    const PackagedInput *input = &frame->package->program->input[argument];
    const DLTensor *given = frame->given[argument];
    if (given->ndim != 0 || given->dtype.code != 0 || given->dtype.bits != 64 || given->device.device_type != CPU_DEVICE)
        return fail(&frame->why, POLYTILE_REFUSED, "input '%s' has to be an integer: a tensor of rank 0 and type int64.", input->name);
    memcpy(integer, (const char *)given->data + given->byte_offset, sizeof *integer);
    return 0;
}

static int on_device(int device)
{
    return device == 0;
}

static void accept(Frame *frame)
{
    (void)frame;
}

static const int64_t *sizes_of(Frame *frame, int number)
{
    return frame->tensors[number].layout.sizes;
}

static const int64_t *strides_of(Frame *frame, int number)
{
    return frame->tensors[number].layout.strides;
}

static int expect(Frame *frame, int number, const Layout *want)
{
    Tensor *tensor = &frame->tensors[number];
    const Layout *own = &tensor->layout;
    const char *name = frame->package->program->input[tensor->input].name;
    int same = 1, empty = 0;
    for (int64_t i = 0; i < want->rank; i++) {
        if (own->sizes[i] != want->sizes[i])
            return fail(&frame->why, POLYTILE_REFUSED, "input '%s' has size %ld in dimension %ld; with the other sizes given, it has to be %ld.",
                        name, (long)own->sizes[i], (long)i, (long)want->sizes[i]);
        same &= own->sizes[i] <= 1 || own->strides[i] == want->strides[i];
        empty |= own->sizes[i] == 0;
    }
    if (same || empty)
        return 0;
    Tensor before = *tensor;
    *tensor = (Tensor){.input = before.input};
    if (allocate_tensor(frame, number, want, 0, 0) < 0)
        return RAISED;
    tensor->input = before.input;
    copy_elements(tensor->data, before.data, want->rank, want->sizes, want->strides, before.layout.strides, element_bytes(want));
    return 0;
}

/* ---- the Api: memory ---- */

static int constant(Frame *frame, int object, int number)
{
    const PackagedConstant *held = &frame->package->program->constant[object];
    char *data = (char *)frame->package->weights.data + held->offset;
    become(&frame->tensors[number], (Tensor){held->bytes == 0 ? NULL : data, NULL, held->layout, -1});
    return 0;
}

static int arena(Frame *frame, const Life *lives, const Layout *const *layouts, int count, int device_type, int device)
{
    PolytilePackage *package = frame->package;
    const int64_t step = 1;
    int64_t bytes[count], total = 0;
    for (int i = 0; i < count; i++) {
        const Tensor *given = lives[i].argument < 0 ? NULL : &frame->tensors[lives[i].argument];
        bytes[i] = given == NULL ? bytes_of(layouts[i], lives[i].bytes_of_element, 64)
                                 : bytes_of(&given->layout, element_bytes(&given->layout), 64);
    }
    pthread_mutex_lock(&package->lock);
    const ArenaPlan *plan = plan_for(&package->plans, lives, bytes, count);
    if (plan != NULL) {
        memcpy(frame->offsets, plan->offsets, (size_t)count * sizeof(int64_t));
        total = plan->total;
    }
    pthread_mutex_unlock(&package->lock);
    if (total == 0)
        return 0;
    return allocate_tensor(frame, package->program->tensors, &(Layout){1, &total, &step, BYTES}, device_type, device);
}

static int carve(Frame *frame, int number, int memory, const Layout *layout, int device_type, int device)
{
    const Tensor *of = &frame->tensors[frame->package->program->tensors];
    if (of->data == NULL)
        return allocate_tensor(frame, number, layout, device_type, device);
    become(&frame->tensors[number], (Tensor){of->data + frame->offsets[memory], shared(of->memory), *layout, -1});
    return 0;
}

static int reuse(Frame *frame, int number, int old, const Layout *layout)
{
    const Tensor *before = &frame->tensors[old];
    become(&frame->tensors[number], (Tensor){before->data, shared(before->memory), layout != NULL ? *layout : before->layout, -1});
    return 0;
}

static int view(Frame *frame, int number, int base, const Layout *layout, int64_t offset, int64_t bytes_of_element, int bits)
{
    const Tensor *of = &frame->tensors[base];
    char *data = of->data == NULL ? NULL : of->data + offset * bytes_of_element;
    (void)bits;
    become(&frame->tensors[number], (Tensor){data, shared(of->memory), *layout, -1});
    return 0;
}

static void free_tensor(Frame *frame, int number)
{
    become(&frame->tensors[number], (Tensor){.input = -1});
}

/* ---- the Api: kernels ---- */

static int order_of(const int64_t *one, const int64_t *other, int32_t fields)
{
    for (int32_t i = 0; i < fields; i++)
        if (one[i] != other[i])
            return one[i] < other[i] ? -1 : 1;
    return 0;
}

static const PackagedRow *find_row(const PackagedTable *table, const int64_t *key, int32_t fields)
{
    int32_t low = 0, high = table->count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        int order = order_of(table->rows[middle].key, key, fields);
        if (order == 0)
            return &table->rows[middle];
        *(order < 0 ? &low : &high) = order < 0 ? middle + 1 : middle;
    }
    return NULL;
}

/* The fields of a call's key with `field` of each size whose bucket matters. */
static void finer_fields(const PackagedKernel *kernel, const int64_t *fields, const int64_t *integers, int64_t (*field)(int64_t),
                         int64_t *finer)
{
    memcpy(finer, fields, (size_t)kernel->fields * sizeof *finer);
    for (int32_t i = 0, at = 0; i < kernel->integers; at += kernel->codes[i++] != IGNORE)
        if (kernel->codes[i] == BUCKET)
            finer[at] = field(integers[i]);
}

static int64_t cell_of(int64_t size)
{
    int64_t field = bucket(size);
    return size <= 8 ? field : field & ~(int64_t)1;
}

/* What is known of calls like this one: decided for these sizes or their regime, else predicted for the cell around them. */
static PackagedRow row_of(const PackagedKernel *kernel, void *const *pointers, int tensor_count, const int64_t *integers)
{
    int64_t fields[kernel->fields + 1], finer[kernel->fields + 1], *next = fields;
    for (int32_t i = 0; i < kernel->integers; i++)
        next = append_integer_field(next, kernel->codes[i], integers[i]);
    int64_t *sizes_end = next;
    for (int i = 0; kernel->tensor_codes != NULL && i < tensor_count; i++)
        if (kernel->tensor_codes[i] != ANY)
            *next++ = tensor_field(kernel->tensor_codes[i], (uintptr_t)pointers[i]);
    for (int32_t i = 0; i < kernel->formula_count; i++)
        *next++ = formula(kernel->formulas[i], (const long *)integers);

    const PackagedRow *row = NULL;
    if (kernel->has_exact_sizes) {
        finer_fields(kernel, fields, integers, exact_size, finer);
        row = find_row(&kernel->decided, finer, kernel->fields);
    }
    if (row == NULL && (row = find_row(&kernel->decided, fields, kernel->fields)) != NULL && row->count == 0) {
        finer_fields(kernel, fields, integers, sub_bucket, finer);
        row = find_row(&kernel->decided, finer, kernel->fields);
    }
    if (row == NULL) {
        finer_fields(kernel, fields, integers, cell_of, finer);
        for (int32_t i = 0, at = 0; i < kernel->integers; at += kernel->codes[i++] != IGNORE)
            if (kernel->codes[i] == DIVISIBLE)
                finer[at] = 0;
        memset(finer + (sizes_end - fields), 0, (size_t)(next - sizes_end) * sizeof *finer);
        row = find_row(&kernel->cells, finer, kernel->fields);
    }
    return row != NULL ? *row : (PackagedRow){NULL, kernel->anywhere_count, kernel->anywhere};
}

/* The first of some leaves that is right for these integers; -1: none is. */
static int first_right(const PackagedKernel *kernel, const unsigned short *leaves, int32_t count, const int64_t *integers)
{
    for (int32_t i = 0; i < count; i++) {
        const PackagedLeaf *leaf = &kernel->leaves[leaves[i]];
        int right = 1;
        for (int32_t k = 0; k < leaf->fact_count; k++)
            right &= integers[leaf->facts[2 * k]] == leaf->facts[2 * k + 1];
        if (right)
            return leaves[i];
    }
    return -1;
}

static int call_kernel(Frame *frame, int number, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    const PackagedKernel *kernel = &frame->package->program->kernel[number];
    void *pointers[tensor_count + 1];
    for (int i = 0; i < tensor_count; i++)
        pointers[i] = frame->tensors[tensors[i]].data;
    PackagedRow row = row_of(kernel, pointers, tensor_count, integers);
    int leaf = first_right(kernel, row.leaves, row.count, integers);
    if (leaf < 0)
        leaf = first_right(kernel, kernel->anywhere, kernel->anywhere_count, integers);
    if (leaf < 0)
        return fail(&frame->why, POLYTILE_REFUSED, "package %s has no form of kernel '%s' for these sizes. Write it with sizes=... that have them.",
                    frame->package->path, kernel->name);
    long code = frame->package->entries[number][leaf](pointers, (const long *)integers, kernel->leaves[leaf].threads);
    (void)count;
    if (code == 0)
        return 0;
    const char *sentence = 0 < code && code <= kernel->check_count ? kernel->checks[code - 1] : "a run-time check failed.";
    return fail(&frame->why, POLYTILE_INDEX, "kernel '%s': %s", kernel->name, sentence);
}

/* What packages never hold: packages/text.py refuses lines that need it. */
static int no_python(Frame *frame, int callable, int result, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    (void)callable, (void)result, (void)tensors, (void)tensor_count, (void)integers, (void)count;
    return fail(&frame->why, POLYTILE_REFUSED, "package %s wants a call of Python.", frame->package->path);
}

static int no_number(Frame *frame, int callable, int64_t *result, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    (void)result;
    return no_python(frame, callable, 0, tensors, tensor_count, integers, count);
}

static int no_output(Frame *frame, int tensor, int source, int output, const Layout *layout)
{
    (void)tensor, (void)source, (void)layout;
    return no_python(frame, output, 0, NULL, 0, NULL, 0);
}

static int is_none(Frame *frame, int number)
{
    (void)frame, (void)number;
    return 0;
}

static int raise_error(Frame *frame, int error)
{
    const PackagedError *raised = &frame->package->program->errors[error];
    return fail(&frame->why, raised->status, "%s", raised->sentence);
}

static int overflow(Frame *frame)
{
    return fail(&frame->why, POLYTILE_REFUSED, "package %s: a size does not fit a signed 64-bit integer, or a divisor is 0.",
                frame->package->path);
}

/* ---- the Api: results ---- */

typedef struct {
    DLManagedTensor managed;
    Memory *memory;
    int64_t numbers[]; /* sizes, then strides */
} Output;

static void delete_output(DLManagedTensor *managed)
{
    Output *output = (Output *)managed;
    drop(output->memory);
    free(output);
}

static int no_memory(Frame *frame)
{
    return fail(&frame->why, POLYTILE_MEMORY, "package %s: there is no memory for a result.", frame->package->path);
}

/* A result of this layout in `memory`, which it takes over. */
static int give(Frame *frame, char *data, Memory *memory, const Layout *layout)
{
    size_t rank = (size_t)layout->rank;
    Output *output = malloc(sizeof *output + 2 * rank * sizeof(int64_t));
    if (output == NULL) {
        drop(memory);
        return no_memory(frame);
    }
    memcpy(output->numbers, layout->sizes, rank * sizeof(int64_t));
    memcpy(output->numbers + rank, layout->strides, rank * sizeof(int64_t));
    output->memory = memory;
    output->managed.manager_ctx = NULL;
    output->managed.deleter = delete_output;
    output->managed.dl_tensor = (DLTensor){
        .data = data, .device = {CPU_DEVICE, 0}, .ndim = (int32_t)rank, .dtype = types[layout->dtype], .shape = output->numbers,
        .strides = output->numbers + rank, .byte_offset = 0,
    };
    frame->results[frame->result_count++] = &output->managed;
    return 0;
}

static int give_tensor(Frame *frame, int number)
{
    const Tensor *tensor = &frame->tensors[number];
    if (tensor->memory != NULL || tensor->data == NULL)
        return give(frame, tensor->data, shared(tensor->memory), &tensor->layout);
    int64_t bytes = bytes_of(&tensor->layout, element_bytes(&tensor->layout), 1);
    Memory *memory = new_memory(bytes);
    if (memory == NULL)
        return no_memory(frame);
    memcpy(memory->data, tensor->data, (size_t)bytes);
    return give(frame, memory->data, memory, &tensor->layout);
}

static int give_integer(Frame *frame, int64_t integer)
{
    Memory *memory = new_memory(sizeof integer);
    if (memory == NULL)
        return no_memory(frame);
    memcpy(memory->data, &integer, sizeof integer);
    return give(frame, memory->data, memory, &(Layout){0, &integer, &integer, INT64});
}

static int give_none(Frame *frame)
{
    frame->results[frame->result_count++] = NULL;
    return 0;
}

static const Api api = {
    take_tensor, take_integer, take_tensor, on_device, accept, sizes_of, strides_of, constant, arena, carve, allocate_tensor, reuse, view,
    free_tensor, call_kernel, no_python, no_number, no_output, is_none, raise_error, overflow, give_tensor, give_integer, give_none, expect,
};

/* ---- calls ---- */

static int run(PolytilePackage *self, Frame *frame)
{
    const PackagedProgram *program = self->program;
    int64_t offsets[program->memories + 1], ranks = 1;
    for (int i = 0; i < program->inputs; i++)
        ranks += program->input[i].rank;
    int64_t strides[ranks];
    frame->offsets = offsets;
    frame->strides = strides;
    frame->tensors = calloc((size_t)program->tensors + 1, sizeof(Tensor));
    if (frame->tensors == NULL)
        return no_memory(frame);
    int status = program->run(&api, frame);
    for (int i = 0; i <= program->tensors; i++)
        drop(frame->tensors[i].memory);
    free(frame->tensors);
    return status;
}

int polytile_call(PolytilePackage *self, const DLTensor *const *inputs, int input_count, DLManagedTensor **outputs, int output_count,
                  char *text, size_t room)
{
    Frame frame = {.package = self, .given = inputs, .results = outputs, .why = {text, room, 0}};
    const PackagedProgram *program = self->program;
    if (input_count != program->inputs || output_count != program->outputs) {
        fail(&frame.why, POLYTILE_REFUSED, "package %s takes %d inputs and gives %d outputs; the call has %d and %d.", self->path,
             program->inputs, program->outputs, input_count, output_count);
        return POLYTILE_REFUSED;
    }
    if (run(self, &frame) == RETURNED)
        return POLYTILE_OK;
    while (frame.result_count-- > 0)
        if (outputs[frame.result_count] != NULL)
            delete_output(outputs[frame.result_count]);
    if (frame.why.status == 0)
        overflow(&frame);
    return frame.why.status;
}
