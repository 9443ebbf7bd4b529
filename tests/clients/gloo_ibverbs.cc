// gloo's collectives over its transport `ibverbs`, between two ranks: the first without an argument, the second with the first's address.
//
// Numbers that a rank can compute for its peer too are reduced, gathered, broadcast and moved by pairs of buffers, and each result is
// compared with what it has to be. The transport has no other way for them than verbs; the ranks meet over TCP.

#include <arpa/inet.h>
#include <gloo/allgather_ring.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_one.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/ibverbs/device.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::uint16_t PORT = 17809;
constexpr int RANKS = 2;
constexpr int ROUNDS = 20;
constexpr int COUNTS[] = {1, 1000, 300'007};

using Numbers = std::vector<std::uint64_t>;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// What both ranks have set: each sends its values to the other at once.
class Meeting : public gloo::rendezvous::Store {
public:
  explicit Meeting(int peer) : peer_(peer) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    known_[key] = data;
    put(key.data(), key.size());
    put(data.data(), data.size());
  }

  std::vector<char> get(const std::string& key) override {
    while (known_.count(key) == 0) {
      const std::vector<char> name = take();
      known_[std::string(name.begin(), name.end())] = take();
    }
    return known_[key];
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      get(key);
    }
  }

private:
  void put(const char* bytes, std::uint64_t length) {
    if (send(peer_, &length, sizeof length, MSG_NOSIGNAL) != sizeof length ||
        send(peer_, bytes, length, MSG_NOSIGNAL) != static_cast<ssize_t>(length)) {
      fail("the peer is gone");
    }
  }

  std::vector<char> take() {
    std::uint64_t length = 0;
    if (recv(peer_, &length, sizeof length, MSG_WAITALL) != sizeof length) {
      fail("the peer is gone");
    }
    std::vector<char> bytes(length);
    if (length > 0 && recv(peer_, bytes.data(), length, MSG_WAITALL) != static_cast<ssize_t>(length)) {
      fail("the peer is gone");
    }
    return bytes;
  }

  int peer_;
  std::map<std::string, std::vector<char>> known_;
};

int peer_of(const char* server) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(PORT);
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  if (server != nullptr) {
    if (inet_pton(AF_INET, server, &address.sin_addr) != 1 || connect(made, name, sizeof address) != 0) {
      fail("the server doesn't answer");
    }
    return made;
  }
  const int yes = 1;
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(made, name, sizeof address) != 0 || listen(made, 1) != 0) {
    fail("the port isn't free");
  }
  return accept(made, nullptr, nullptr);
}

// In the place of those that are there: gloo knows it.
void fill(Numbers& place, int rank, int round) {
  std::mt19937_64 random(1000 * round + rank);
  for (auto& number : place) {
    number = random();
  }
}

Numbers numbers(int rank, int round, int count) {
  Numbers made(count);
  fill(made, rank, round);
  return made;
}

Numbers sum(int round, int count) {
  Numbers made = numbers(0, round, count);
  const Numbers other = numbers(1, round, count);
  for (int place = 0; place < count; place++) {
    made[place] += other[place];
  }
  return made;
}

void expect(const Numbers& got, const Numbers& wanted, const char* what) {
  if (got != wanted) {
    fail(std::string(what) + ": other numbers");
  }
}

// Something that is never destroyed: gloo can't find out whether its device's thread still works on an object, so objects stay.
template <typename Type, typename... Arguments>
Type& kept(Arguments&&... arguments) {
  return *new Type(std::forward<Arguments>(arguments)...);
}

using Places = std::vector<std::uint64_t*>;

// Makes the connections of each collective: one connection has room for the buffers of one.
class Ranks {
public:
  Ranks(int rank, int peer) : rank(rank), meeting_(peer) {}

  std::shared_ptr<gloo::Context> connected() {
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, RANKS);
    gloo::rendezvous::PrefixStore store(std::to_string(made_++), meeting_);
    context->connectFullMesh(store, device_);
    return context;
  }

  // Each rank announces to the other that it has everything it waits for.
  void part() {
    const std::string own = "end " + std::to_string(rank), others = "end " + std::to_string(1 - rank);
    meeting_.set(own, {});
    meeting_.get(others);
  }

  const int rank;

private:
  Meeting meeting_;
  std::shared_ptr<gloo::transport::Device> device_ =
      gloo::transport::ibverbs::CreateDevice(gloo::transport::ibverbs::attr{"ferroce0", 1, 1});
  int made_ = 0;
};

template <typename Collective>
void reduce(Ranks& ranks, int count, const char* what) {
  auto& memory = kept<Numbers>(count);
  auto& collective = kept<Collective>(ranks.connected(), Places{memory.data()}, count);
  for (int round = 0; round < ROUNDS; round++) {
    fill(memory, ranks.rank, round);
    collective.run();
    expect(memory, sum(round, count), what);
  }
}

void gather(Ranks& ranks, int count) {
  auto &memory = kept<Numbers>(count), &gathered = kept<Numbers>(RANKS * count);
  auto& collective = kept<gloo::AllgatherRing<std::uint64_t>>(
      ranks.connected(), std::vector<const std::uint64_t*>{memory.data()}, gathered.data(), count);
  auto& barrier = kept<gloo::BarrierAllToOne>(ranks.connected());
  for (int round = 0; round < ROUNDS; round++) {
    fill(memory, ranks.rank, round);
    collective.run();
    Numbers both = numbers(0, round, count);
    const Numbers second = numbers(1, round, count);
    both.insert(both.end(), second.begin(), second.end());
    expect(gathered, both, "allgather_ring");
    barrier.run();  // the peer's next numbers come into the place of these
  }
}

void broadcast(Ranks& ranks, int count) {
  auto& memory = kept<Numbers>(count);
  auto& collective = kept<gloo::BroadcastOneToAll<std::uint64_t>>(
      ranks.connected(), Places{memory.data()}, count);
  for (int round = 0; round < ROUNDS; round++) {
    fill(memory, ranks.rank, round);
    collective.run();
    expect(memory, numbers(0, round, count), "broadcast_one_to_all");
  }
}

// A buffer to send from and one to receive into, in turns.
void pair(Ranks& ranks, int count) {
  const auto& context = kept<std::shared_ptr<gloo::Context>>(ranks.connected());
  auto& pair = context->getPair(1 - ranks.rank);
  auto &sent = kept<Numbers>(count), &received = kept<Numbers>(count);
  const std::size_t size = count * sizeof(std::uint64_t);
  auto* source = pair->createSendBuffer(0, sent.data(), size).release();
  auto* target = pair->createRecvBuffer(0, received.data(), size).release();
  for (int round = 0; round < ROUNDS; round++) {
    if (ranks.rank == round % RANKS) {
      fill(sent, ranks.rank, round);
      source->send();
      source->waitSend();
    } else {
      target->waitRecv();
      expect(received, numbers(1 - ranks.rank, round, count), "a pair of buffers");
    }
  }
}

void run(const char* server) {
  auto& ranks = kept<Ranks>(server == nullptr ? 0 : 1, peer_of(server));
  for (const int count : COUNTS) {
    reduce<gloo::AllreduceRingChunked<std::uint64_t>>(ranks, count, "allreduce_ring_chunked");
    reduce<gloo::AllreduceHalvingDoubling<std::uint64_t>>(ranks, count, "allreduce_halving_doubling");
    gather(ranks, count);
    broadcast(ranks, count);
    pair(ranks, count);
  }
  kept<gloo::BarrierAllToOne>(ranks.connected()).run();
  ranks.part();
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  try {
    run(argc > 1 ? argv[1] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = 1;
  }
  std::_Exit(code);
}
