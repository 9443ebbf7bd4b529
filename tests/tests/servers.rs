//! Servers of others under load over rsockets: nginx, Redis, memcached, asio, and Python's asyncio and selectors, each with a client that
//! checks every byte. Both sides are under `ferroce run --sockets`, within a host and between two.
//!
//! `FERROCE_LOAD_SECONDS=60 cargo nextest run -p ferroce-tests -E 'binary(servers)'` has each load last a minute.

use ferroce_tests::{Host, Process, Skip, World, client_program, require, tool};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// TCP's port space, in which rsockets listen.
const TCP: u16 = 0x0106;
/// How long each load lasts, in seconds.
const SECONDS: u32 = 3;
const SOCKETS: &[&str] = &["--sockets"];

const LOAD: &str = include_str!("../clients/load.py");
const ASYNCIO: &str = include_str!("../clients/echo_asyncio.py");
const SELECTORS: &str = include_str!("../clients/echo_selectors.py");

fn seconds() -> u32 {
    let wanted = std::env::var("FERROCE_LOAD_SECONDS");
    wanted.map_or(SECONDS, |count| count.parse().expect("FERROCE_LOAD_SECONDS is a number"))
}

/// Where both sides run.
#[derive(Clone, Copy)]
enum Place {
    OneHost,
    TwoHosts,
}

const PLACES: [Place; 2] = [Place::OneHost, Place::TwoHosts];

impl Place {
    fn world(self) -> Result<World, Skip> {
        let world = match self {
            Self::OneHost => World::one_host(9000),
            Self::TwoHosts => World::two_hosts(1500),
        }?;
        world.may_last(4 * LIMIT + Duration::from_secs(2 * u64::from(seconds())));
        Ok(world)
    }
}

/// In a line of words, `SERVER` stands for the server's IPv4 address, and `SECONDS` for how long the load lasts.
fn words(line: &str, world: &World) -> Vec<String> {
    let (address, seconds) = (world.last().ipv4(), seconds().to_string());
    line.split_whitespace()
        .map(|word| word.replace("SERVER", &address).replace("SECONDS", &seconds))
        .collect()
}

fn write(host: &Host, name: &str, content: impl AsRef<[u8]>) {
    std::fs::write(host.path(&format!("/tmp/{name}")), content).expect("the host's /tmp");
}

/// Segments of TCP that the server's host has got.
fn segments(world: &World) -> u64 {
    let counted = world.last().admin("cat /proc/net/snmp");
    let numbers = counted.lines().filter(|line| line.starts_with("Tcp:")).nth(1).expect("TCP's numbers");
    numbers.split(' ').nth(10).and_then(|number| number.parse().ok()).expect("segments")
}

/// A server that listens at the port by an rsocket.
fn serve(world: &World, port: u16, line: &str) -> Process {
    let mut server = world.last().start_ferroce(SOCKETS, &words(line, world), &[]);
    world.last().wait_for_rdma_port(TCP, port, &mut server, LIMIT);
    server
}

/// Runs clients, one after the other, each of which must end well; then the server must live, and nothing have gone by TCP.
fn load(world: &World, mut server: Process, clients: &[&str]) {
    for client in clients {
        let limit = 2 * LIMIT + Duration::from_secs(2 * u64::from(seconds()));
        let outcome = world.first().start_ferroce(SOCKETS, &words(client, world), &[]).wait(limit);
        if !outcome.success() {
            server.signal(libc::SIGTERM);
            panic!("{outcome}server: {}", server.wait(Duration::from_secs(5)));
        }
        println!("{client}: {}", outcome.stdout.lines().last().unwrap_or_default());
    }
    assert!(!server.has_ended(), "{}", server.wait(Duration::ZERO));
    assert!(segments(world) < 20, "{} segments of TCP", segments(world));
    server.signal(libc::SIGKILL);
}

/// Bytes without a pattern that repeats.
fn page() -> Vec<u8> {
    let mut state = 11u64;
    let mut content = Vec::new();
    while content.len() < 8_000_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        content.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    content
}

/// One process that accepts and serves, with epoll by edges; it is its own client, too. Children of a fork have no rsockets.
const NGINX: &str = "
daemon off;
master_process off;
pid /tmp/nginx.pid;
error_log stderr error;
events { worker_connections 512; use epoll; multi_accept on; }
http {
    access_log off;
    client_body_temp_path /tmp/nginx-body;
    proxy_temp_path /tmp/nginx-proxy;
    fastcgi_temp_path /tmp/nginx-fastcgi;
    uwsgi_temp_path /tmp/nginx-uwsgi;
    scgi_temp_path /tmp/nginx-scgi;
    sendfile SENDFILE;
    keepalive_requests 1000;
    server {
        listen SERVER:8080;
        root /tmp;
        location /proxied/ { proxy_pass http://SERVER:8080/; proxy_buffering BUFFERING; proxy_set_header Range $http_range; }
    }
}
";

#[test]
fn nginx_serves_files_and_is_its_own_client() {
    require!(tool("nginx", "nginx-light"));
    for (place, sendfile) in [(Place::OneHost, "on"), (Place::OneHost, "off"), (Place::TwoHosts, "on")] {
        let world = require!(place.world());
        let content = page();
        write(world.first(), "page", &content);
        write(world.last(), "page", &content);
        let text = NGINX
            .replace("SERVER", &world.last().ipv4())
            .replace("SENDFILE", sendfile)
            .replace("BUFFERING", sendfile);
        write(world.last(), "nginx.conf", text);
        write(world.first(), "load.py", LOAD);
        let server = serve(&world, 8080, "nginx -p /tmp -e stderr -c /tmp/nginx.conf");
        load(&world, server, &["python3 /tmp/load.py http SERVER 8080 8 SECONDS"]);
    }
}

#[test]
fn redis_with_threads_for_its_sockets_serves() {
    require!(tool("redis-server", "redis-server"));
    for place in PLACES {
        let world = require!(place.world());
        write(world.first(), "load.py", LOAD);
        let line = "redis-server --bind SERVER --port 6379 --io-threads 4 --io-threads-do-reads yes --protected-mode no \
                    --appendonly no --dir /tmp --loglevel warning";
        let mut line = words(line, &world);
        line.extend(["--save".to_owned(), String::new()]);
        let mut server = world.last().start_ferroce(SOCKETS, &line, &[]);
        world.last().wait_for_rdma_port(TCP, 6379, &mut server, LIMIT);
        load(
            &world,
            server,
            &[
                "python3 /tmp/load.py redis SERVER 6379 8 SECONDS",
                "redis-benchmark -h SERVER -p 6379 -q -n 2000 -c 20 -P 4 -d 3000 -t set,get",
                // 300 KB a reply.
                "redis-benchmark -h SERVER -p 6379 -q -n 200 -c 20 -P 4 -d 3000 -t lrange_100",
                "redis-benchmark -h SERVER -p 6379 -q -n 2000 -c 20 --threads 3 -t set,get",
            ],
        );
    }
}

#[test]
fn memcached_with_threads_serves() {
    require!(tool("memcached", "memcached"));
    for place in PLACES {
        let world = require!(place.world());
        write(world.first(), "load.py", LOAD);
        let server = serve(&world, 11211, "memcached -l SERVER -p 11211 -U 0 -t 4 -m 128");
        load(&world, server, &["python3 /tmp/load.py memcached SERVER 11211 8 SECONDS"]);
    }
}

#[test]
fn a_server_and_a_client_on_asio_exchange_messages() {
    if !std::path::Path::new("/usr/include/asio.hpp").exists() {
        require!(Err(Skip("asio.hpp isn't installed (Debian: libasio-dev)".into())));
    }
    let program = require!(client_program("asio_echo", &[])).display().to_string();
    for place in PLACES {
        for threads in [1, 4] {
            let world = require!(place.world());
            let server = serve(&world, 7000, &format!("{program} server SERVER 7000 {threads}"));
            load(&world, server, &[&format!("{program} client SERVER 7000 {threads} 12 SECONDS")]);
        }
    }
}

#[test]
fn asyncio_serves_asyncio() {
    for place in PLACES {
        let world = require!(place.world());
        for host in [world.first(), world.last()] {
            write(host, "load.py", LOAD);
            write(host, "echo.py", ASYNCIO);
        }
        let server = serve(&world, 7000, "python3 /tmp/echo.py SERVER 7000");
        load(
            &world,
            server,
            &[
                "python3 /tmp/echo.py SERVER 7000 12 SECONDS",
                "python3 /tmp/load.py echo SERVER 7000 6 SECONDS",
            ],
        );
    }
}

#[test]
fn each_selector_of_python_serves() {
    for selector in ["Epoll", "Poll", "Select"] {
        let world = require!(Place::OneHost.world());
        write(world.first(), "load.py", LOAD);
        write(world.last(), "echo.py", SELECTORS);
        let server = serve(&world, 7000, &format!("python3 /tmp/echo.py SERVER 7000 {selector}"));
        load(&world, server, &["python3 /tmp/load.py echo SERVER 7000 8 SECONDS"]);
    }
}
