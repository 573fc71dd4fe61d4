/* Counts the instructions of a 64-bit ARM program by kind: a plugin of QEMU's user mode (API version 1, QEMU 6.0 to 8.2).

       gcc -shared -fPIC -o count.so count.c
       qemu-aarch64 -plugin ./count.so,out=FILE PROGRAM

   FILE gets a line of JSON. Threads are counted together, and where several run at the same time some counts are lost. */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* What of the plugin API is used here, as its documentation describes it. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct qemu_info_t qemu_info_t;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                                  void (*cb)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb));
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *insn, enum qemu_plugin_op op, void *ptr,
                                                       uint64_t imm);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t idx);
extern const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*cb)(qemu_plugin_id_t id, void *data), void *data);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum kind { VECTOR, VECTOR_MEMORY, MEMORY, BRANCH, OTHER, KINDS };
static const char *names[KINDS] = {"vector", "vector_memory", "memory", "branch", "other"};
static uint64_t counts[KINDS];
static char path[4096];

/* The kind of an instruction: Arm Architecture Reference Manual for A-profile, C4.1, by bits 25 to 28. */
static enum kind kind_of(uint32_t word) {
    uint32_t group = word >> 25 & 15;
    if ((group & 5) == 4) return word >> 26 & 1 ? VECTOR_MEMORY : MEMORY;
    if ((group & 7) == 7 || group == 2) return VECTOR;
    if ((group & 14) == 10) return BRANCH;
    return OTHER;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint32_t word;
        memcpy(&word, qemu_plugin_insn_data(insn), sizeof word);
        qemu_plugin_register_vcpu_insn_exec_inline(insn, QEMU_PLUGIN_INLINE_ADD_U64, &counts[kind_of(word)], 1);
    }
}

static void ended(qemu_plugin_id_t id, void *data) {
    (void)id, (void)data;
    FILE *file = fopen(path, "w");
    if (!file) return;
    fprintf(file, "{");
    for (int i = 0; i < KINDS; i++) fprintf(file, "%s\"%s\": %llu", i ? ", " : "", names[i], (unsigned long long)counts[i]);
    fprintf(file, "}\n");
    fclose(file);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                                                               char **argv) {
    (void)info;
    for (int i = 0; i < argc; i++)
        if (!strncmp(argv[i], "out=", 4)) snprintf(path, sizeof path, "%s", argv[i] + 4);
    if (!*path) return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, 0);
    return 0;
}
