/* graphs.h - graphs: lists of tasks, each after those that it depends on. All functions
 * need the lock. */
#ifndef FAKECUDA_GRAPHS_H
#define FAKECUDA_GRAPHS_H

#include "work.h"

typedef struct fake_node {
    fake_task task;
    uint32_t *before; /* owned */
    size_t before_count;
} fake_node;

/* In the order in which they were captured, so each stands after what it depends on. The
 * graph and its executable ones share them; they do not change after the capture. */
typedef struct fake_nodes {
    unsigned references;
    fake_node *items;
    size_t count, capacity;
} fake_nodes;

typedef struct fake_graph {
    void *handle;
    fake_nodes *nodes; /* a reference */
} fake_graph;

struct fake_exec {
    void *handle; /* NULL: destroyed */
    unsigned references;
    fake_nodes *nodes; /* a reference */
    fake_op *last;     /* its last launch; a reference */
};

fake_graph *
fake_graph_make_locked(void);
void
fake_graph_drop_locked(fake_graph *graph);

/* Takes what the task owns. */
void
fake_graph_add_locked(fake_graph *graph, fake_task *task, const uint32_t *before,
                      size_t count);

void
fake_exec_release_locked(fake_exec *exec); /* accepts NULL */

/* execute.c calls it for FAKE_LAUNCH_GRAPH. */
void
fake_run_graph_locked(fake_op *op, const fake_task *task);

/* execute.c. */
void
fake_execute_task_locked(fake_op *op, const fake_task *task);

/* The bodies of the calls, for both interfaces. */
int
fake_graph_instantiate_locked(CUgraphExec *out, CUgraph handle);
int
fake_graph_launch_locked(CUgraphExec handle, CUstream stream);
int
fake_graph_upload_locked(CUgraphExec handle, CUstream stream);
int
fake_graph_destroy_locked(CUgraph handle);
int
fake_graph_exec_destroy_locked(CUgraphExec handle);
int
fake_graph_nodes_locked(CUgraph handle, CUgraphNode *out, size_t *count);

/* The n-th node as programs name it. */
CUgraphNode
fake_node_handle(const fake_graph *graph, size_t n);

#endif
