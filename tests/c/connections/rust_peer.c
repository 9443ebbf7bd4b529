/* The peer of a Rust program: `rust_peer client PORT` connects, sends a message, receives the answer and ends the connection;
   `rust_peer server` listens at a port that it prints, answers a message with the same bytes and ends the connection. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char bytes[256];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static struct rdma_cm_id *endpoint(const char *port, int flags)
{
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    struct rdma_cm_id *id;
    if (rdma_getaddrinfo("127.0.0.1", port, &hints, &found))
        fail("rdma_getaddrinfo");
    if (rdma_create_ep(&id, found, NULL, &attr))
        fail("rdma_create_ep");
    rdma_freeaddrinfo(found);
    return id;
}

/* Memory for a message is there before the request or the answer leaves. */
static struct ibv_mr *receive(struct rdma_cm_id *id)
{
    struct ibv_mr *mr = rdma_reg_msgs(id, bytes, sizeof(bytes));
    if (!mr || rdma_post_recv(id, NULL, bytes, sizeof(bytes), mr))
        fail("rdma_post_recv");
    return mr;
}

static unsigned completed(const char *what, int (*get)(struct rdma_cm_id *, struct ibv_wc *), struct rdma_cm_id *id)
{
    struct ibv_wc wc;
    if (get(id, &wc) != 1)
        fail(what);
    if (wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(wc.status));
        exit(1);
    }
    return wc.byte_len;
}

static void said(struct rdma_cm_id *id)
{
    const struct rdma_conn_param *param = &id->event->param.conn;
    printf("private data: %.*s\n", param->private_data_len, (const char *)param->private_data);
}

int main(int argc, char **argv)
{
    struct rdma_conn_param param = {.private_data = "from C", .private_data_len = 6, .responder_resources = 4,
                                    .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7};
    static char hello[] = "hello from C";
    struct rdma_cm_id *id, *listener = NULL;
    struct ibv_mr *mr, *own;
    unsigned len;
    int is_client = argc == 3 && !strcmp(argv[1], "client");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (is_client) {
        id = endpoint(argv[2], 0);
        mr = receive(id);
        if (rdma_connect(id, &param))
            fail("rdma_connect");
        said(id);
        own = rdma_reg_msgs(id, hello, sizeof(hello));
        if (!own || rdma_post_send(id, NULL, hello, sizeof(hello) - 1, own, 0))
            fail("rdma_post_send");
        completed("send", rdma_get_send_comp, id);
        len = completed("receive", rdma_get_recv_comp, id);
        printf("message: %.*s\n", (int)len, bytes);
        rdma_dereg_mr(own);
    } else {
        listener = endpoint("0", RAI_PASSIVE);
        if (rdma_listen(listener, 4))
            fail("rdma_listen");
        printf("port %d\n", ntohs(rdma_get_src_port(listener)));
        if (rdma_get_request(listener, &id))
            fail("rdma_get_request");
        said(id);
        mr = receive(id);
        if (rdma_accept(id, &param))
            fail("rdma_accept");
        len = completed("receive", rdma_get_recv_comp, id);
        printf("message: %.*s\n", (int)len, bytes);
        if (rdma_post_send(id, NULL, bytes, len, mr, 0))
            fail("rdma_post_send");
        completed("send", rdma_get_send_comp, id);
    }
    if (rdma_disconnect(id))
        fail("rdma_disconnect");
    rdma_dereg_mr(mr);
    rdma_destroy_ep(id);
    if (listener)
        rdma_destroy_ep(listener);
    return 0;
}
