// An echo server on asio's threads, and its client, which checks each byte.
//
//   asio_echo server ADDRESS PORT THREADS
//   asio_echo client ADDRESS PORT THREADS CONNECTIONS SECONDS
#include <asio.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

using asio::ip::tcp;

namespace {

std::atomic<long> requests{0}, bytes{0}, failures{0};
const auto start = std::chrono::steady_clock::now();

void failed(const char *what, const asio::error_code &error)
{
	if (failures++ < 5)
		std::fprintf(stderr, "%s: %s\n", what, error.message().c_str());
}

// Sends back what comes.
struct Served : std::enable_shared_from_this<Served> {
	explicit Served(tcp::socket socket) : socket(std::move(socket)) {}

	void read()
	{
		socket.async_read_some(asio::buffer(data), [self = shared_from_this()](asio::error_code error, std::size_t length) {
			if (error)
				return;
			asio::async_write(self->socket, asio::buffer(self->data, length), [self](asio::error_code error, std::size_t) {
				if (!error)
					self->read();
			});
		});
	}

	tcp::socket socket;
	char data[20000];
};

void accept(tcp::acceptor &acceptor)
{
	acceptor.async_accept(asio::make_strand(acceptor.get_executor()), [&acceptor](asio::error_code error, tcp::socket socket) {
		if (error)
			failed("accept", error);
		else
			std::make_shared<Served>(std::move(socket))->read();
		accept(acceptor);
	});
}

// Sends a message and receives it at once, again and again, and now and then by a new connection.
struct Asking : std::enable_shared_from_this<Asking> {
	Asking(asio::io_context &context, tcp::endpoint server, unsigned number, int seconds)
		: strand(asio::make_strand(context)), socket(strand), server(server), state(number + 1), seconds(seconds)
	{
	}

	std::uint64_t draw()
	{
		state = state * 6364136223846793005u + 1442695040888963407u;
		return state >> 33;
	}

	void connect()
	{
		socket = tcp::socket(strand);
		socket.async_connect(server, [self = shared_from_this()](asio::error_code error) {
			if (error)
				return failed("connect", error);
			self->ask();
		});
	}

	void ask()
	{
		static const std::size_t sizes[] = {1, 100, 5000, 50000, 300000};

		if (made >= 5 && std::chrono::steady_clock::now() - start > std::chrono::seconds(seconds)) {
			socket.shutdown(tcp::socket::shutdown_send);
			return asio::async_read(socket, asio::buffer(in), [self = shared_from_this()](asio::error_code error, std::size_t length) {
				if (error != asio::error::eof || length != 0)
					failed("the end", error);
			});
		}
		out.resize(sizes[draw() % 5]);
		for (auto &byte : out)
			byte = static_cast<char>(draw());
		in.assign(out.size(), 0);
		left = 2;
		asio::async_write(socket, asio::buffer(out), [self = shared_from_this()](asio::error_code error, std::size_t) {
			if (error)
				return failed("write", error);
			self->done();
		});
		asio::async_read(socket, asio::buffer(in), [self = shared_from_this()](asio::error_code error, std::size_t) {
			if (error)
				return failed("read", error);
			self->done();
		});
	}

	void done()
	{
		if (--left > 0)
			return;
		if (in != out)
			return failed("other bytes", {});
		requests++;
		bytes += static_cast<long>(in.size());
		made++;
		if (draw() % 20 == 0) {
			asio::error_code ignored;
			socket.close(ignored);
			return connect();
		}
		ask();
	}

	asio::strand<asio::io_context::executor_type> strand;
	tcp::socket socket;
	tcp::endpoint server;
	std::uint64_t state;
	int seconds, left = 0, made = 0;
	std::vector<char> out, in;
};

void run(asio::io_context &context, int count)
{
	std::vector<std::thread> threads;

	for (int i = 0; i < count; i++)
		threads.emplace_back([&context] { context.run(); });
	for (auto &thread : threads)
		thread.join();
}

} // namespace

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	asio::io_context context;
	const tcp::endpoint server(asio::ip::make_address(argv[2]), static_cast<unsigned short>(std::atoi(argv[3])));
	const int threads = std::atoi(argv[4]);

	if (std::strcmp(argv[1], "server") == 0) {
		tcp::acceptor acceptor(context, server);
		accept(acceptor);
		std::puts("serving");
		std::fflush(stdout);
		run(context, threads);
		return 0;
	}
	for (int i = 0; i < std::atoi(argv[5]); i++)
		std::make_shared<Asking>(context, server, i, std::atoi(argv[6]))->connect();
	run(context, threads);
	std::printf("%ld requests, %ld bytes\n", requests.load(), bytes.load());
	return failures ? 1 : 0;
}
