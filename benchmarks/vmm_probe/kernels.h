/* kernels.h - three kernels as PTX, which the driver compiles: the program needs no
 * compiler for the device.
 *
 *     probe_spin(ns)                   keeps the stream busy
 *     probe_store(words, count, first) words[i] = first + i
 *     probe_check(words, count, first, bad)   counts words that differ from that
 */
#ifndef GM_VMM_PROBE_KERNELS_H
#define GM_VMM_PROBE_KERNELS_H

static const char probe_kernels[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry probe_spin(.param .u64 p_ns)\n"
    "{\n"
    "  .reg .u64 %ns, %start, %now;\n"
    "  .reg .pred %more;\n"
    "  ld.param.u64 %ns, [p_ns];\n"
    "  mov.u64 %start, %globaltimer;\n"
    "again:\n"
    "  mov.u64 %now, %globaltimer;\n"
    "  sub.u64 %now, %now, %start;\n"
    "  setp.lt.u64 %more, %now, %ns;\n"
    "  @%more bra again;\n"
    "  ret;\n"
    "}\n"
    /* The thread's number, its address and what belongs there, or the end. */
    ".visible .entry probe_store(.param .u64 p_words, .param .u32 p_count,\n"
    "                            .param .u32 p_first)\n"
    "{\n"
    "  .reg .u32 %block, %size, %i, %count, %first;\n"
    "  .reg .u64 %words, %at;\n"
    "  .reg .pred %beyond;\n"
    "  mov.u32 %block, %ctaid.x;\n"
    "  mov.u32 %size, %ntid.x;\n"
    "  mov.u32 %i, %tid.x;\n"
    "  mad.lo.u32 %i, %block, %size, %i;\n"
    "  ld.param.u32 %count, [p_count];\n"
    "  setp.ge.u32 %beyond, %i, %count;\n"
    "  @%beyond bra end;\n"
    "  ld.param.u64 %words, [p_words];\n"
    "  ld.param.u32 %first, [p_first];\n"
    "  mul.wide.u32 %at, %i, 4;\n"
    "  add.u64 %at, %words, %at;\n"
    "  add.u32 %first, %first, %i;\n"
    "  st.global.u32 [%at], %first;\n"
    "end:\n"
    "  ret;\n"
    "}\n"
    ".visible .entry probe_check(.param .u64 p_words, .param .u32 p_count,\n"
    "                            .param .u32 p_first, .param .u64 p_bad)\n"
    "{\n"
    "  .reg .u32 %block, %size, %i, %count, %first, %found, %old;\n"
    "  .reg .u64 %words, %at, %bad;\n"
    "  .reg .pred %done;\n"
    "  mov.u32 %block, %ctaid.x;\n"
    "  mov.u32 %size, %ntid.x;\n"
    "  mov.u32 %i, %tid.x;\n"
    "  mad.lo.u32 %i, %block, %size, %i;\n"
    "  ld.param.u32 %count, [p_count];\n"
    "  setp.ge.u32 %done, %i, %count;\n"
    "  @%done bra end;\n"
    "  ld.param.u64 %words, [p_words];\n"
    "  ld.param.u32 %first, [p_first];\n"
    "  ld.param.u64 %bad, [p_bad];\n"
    "  mul.wide.u32 %at, %i, 4;\n"
    "  add.u64 %at, %words, %at;\n"
    "  add.u32 %first, %first, %i;\n"
    "  ld.global.u32 %found, [%at];\n"
    "  setp.eq.u32 %done, %found, %first;\n"
    "  @%done bra end;\n"
    "  atom.global.add.u32 %old, [%bad], 1;\n"
    "end:\n"
    "  ret;\n"
    "}\n";

#endif
