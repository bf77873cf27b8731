"""Limits that several modules share, or that a peer or an operator meets, each with its reason.

Here belong: sizes of messages and queues between programs, quotas of clients, operators and
tenants, waits that a caller notices, and defaults of settings. A bound that concerns one module
only (a poll interval, the length of a shown text, the size of a cache) is a named constant at the
top of that module. A queue, buffer, message or wait without a named bound is a defect. The last
word of a name is the unit.
"""

KiB = 1024
MiB = 1024 * KiB

# --- terminal sizes -----------------------------------------------------------------------------
COLS_MIN, ROWS_MIN = 2, 2  # a stray 0x0 or 1x1 client must not ruin a full-screen program
COLS_MAX, ROWS_MAX = 1000, 1000  # a gigantic size is a known way to exhaust a server's memory
COLS_DEFAULT, ROWS_DEFAULT = 80, 24

# --- keeper: ring, input, exits -----------------------------------------------------------------
RING_BYTES = 8 * MiB  # history kept per session; a page costs memory only once it is written
RING_BYTES_MIN = 64 * KiB
RING_BYTES_MAX = 1024 * MiB
PTY_READ_BYTES = 64 * KiB  # one readv; the kernel returns about 4 KiB at a time
PTY_READS_PER_WAKE = 32  # then the other descriptors are served
PTY_BUSY_BYTES = 2 * KiB  # a read of this size is nearly always followed by more output
HOST_AWAY_MAX_S = 24 * 3600.0
GATE_AWAY_S = 10.0  # without a host for this long, execs that wait at the gate are refused
# When the host makes no progress for this long, the ring rolls so that programs do not block.
HOST_AWAY_S = 10.0
INPUT_QUEUE_BYTES = 1 * MiB  # typed but not yet read by the program; more input is refused
INPUT_QUEUE_ACTS = 4096  # pieces of that queue: the list of withdrawn input fits into a packet
INPUT_CHUNK_BYTES = 64 * KiB  # a single input packet
ORIGINS_KEPT = 256  # clients whose last applied number the keeper remembers (exactly-once)
REAPED_KEPT = 64  # exit codes of orphans kept for the host
LABEL_BYTES = 32 * KiB  # the host's own description of a session, opaque to the keeper
SPAWN_BYTES = 4 * MiB  # a spawn request: argv and environment (the kernel takes about 2 MiB)
SPAWN_WAIT_S = 20.0  # from the request to the nursery until the keeper answers
KEEPER_PACKET_BYTES = 128 * KiB  # a single packet between host and keeper
SNAPSHOT_BYTES = 64 * MiB  # the latest screen with its scrollback, in the keeper's second memfd
KEEPER_BACKLOG = 8  # connections that have not introduced themselves; the oldest is dropped
KEEPER_EVENTS_PER_WAKE = 16
KEEPER_NAME_BYTES = 80  # session id and socket file name (a unix socket's path has 107 bytes)
KEEPER_LOG_BYTES = 1 * MiB  # log of failures that no client could be told; truncated when larger
LISTEN_BACKLOG = 64  # connections that wait to be accepted
NURSERY_PAUSE_S = 0.1  # after an accept that failed because no descriptor was free
SIGNAL_ROUNDS = 8  # walks over a tree that forks while it is signalled
CONTAINED_PATHS = 2048  # paths in the file tree of one contained session
CONNECT_COMMANDS = 8  # alternatives that connect a session's own network
CONNECT_WAIT_S = 5.0  # for one of them, until it has set the route and confined itself
BELLS_MAX = 64  # local viewers that read a ring directly; the host serves the rest

# --- spool: what a session leaves on disk for a cold start ----------------------------------------
# Per session on disk: some 20,000 lines. 1,000 sessions take 2 GiB at most.
CHECKPOINTS_KEPT = 3  # newest checkpoints of a session
CHECKPOINTS_KEPT_MAX = 1000
CHECKPOINT_BYTES = 50 << 30  # of all checkpoints of a home
CHECKPOINT_BYTES_MAX = 1 << 50
SPOOL_BYTES = 2 * MiB
SPOOL_BYTES_MIN = 256 * KiB
SPOOL_BYTES_MAX = 64 * MiB  # a cold start reads all of it into memory
SPOOL_SEGMENTS = 4  # files that share SPOOL_BYTES; the oldest is deleted as a whole
COPIES_BYTES = 16 << 30  # of copies of sessions that this machine keeps for other machines
SPOOL_FILES_MAX = 64  # short files count too: every host begins one
SPOOL_PASS_BYTES = 256 * KiB  # the newest output of a session that one pass stores
SPOOL_S = 1.0  # between two passes; a power cut loses at most the output of this time
SPOOL_AGAIN_S = 10.0  # until a session is tried again whose file the disk refused

# --- host: frames and connections ---------------------------------------------------------------
FRAME_BYTES = 4 * MiB  # a single frame to a client; a painted screen with scrollback is the largest
REQUEST_BYTES = 2 * MiB  # a single frame from a client: the text of a `run`, an environment
HELLO_WAIT_S = 5.0  # for a client's hello, and again for its proof; then the host closes
CLIENTS_MAX = 1024  # connections to one host; then the oldest unidentified client is dropped
OPERATOR_CLIENTS_MAX = 512  # connections per operator, so that none can use them all
SESSIONS_MAX = 4096
NAME_CHARS = 64
OUTPUT_CHUNK_BYTES = 128 * KiB  # a single OUTPUT frame
REPLY_QUEUE_BYTES = 8 * MiB  # unread replies; beyond that the client is dropped
DOWNSTREAM_WINDOW_BYTES = 1 * MiB  # of an answer's DATA that a client takes before it reads
UPSTREAM_WINDOW_BYTES = 256 * KiB  # of a request's STDIN that the host takes before a program reads

FORWARDS_MAX = 32  # ports that are open at once for a key
# Connections through one forward. Each is a request, of which a client may have 256 under way.
FORWARD_CONNECTIONS_MAX = 128
FORWARD_WAIT_S = 30.0  # for a lost host to return, until a new connection is given up

# --- viewers ------------------------------------------------------------------------------------
PACE_WINDOW_S = 0.25  # a viewer that slows the program down must read PACE_BYTES in this time
PACE_BYTES = 256 * KiB  # that is 1 MB/s; a slower viewer is lagging and no longer slows programs
RUN_PACE_WINDOW_S = 10.0  # the caller of `run` asked for the output: wait longer before dropping
VIEW_DELAY_S = 0.02  # the emulator is fed this much later than viewers
VIEW_SLICE_BYTES = 256 * KiB  # fed to an emulator before the next session is served
# Must stay well below RING_BYTES: the keeper never rolls past the last snapshot.
SNAPSHOT_EVERY_BYTES = 3 * MiB
SNAPSHOT_QUIET_S = 1.0  # a snapshot is also taken after this much silence
SCROLLBACK_LINES = 5_000  # kept by the host per session
SCROLLBACK_PAINTED = 1_000  # lines of it sent to a terminal that attaches
RENDER_INTERVAL_S = 0.033  # viewers of another size are redrawn at most this often

# --- operators ----------------------------------------------------------------------------------
OPERATORS_MAX = 4096  # known on a machine, revoked operators included: their names stay taken
OPERATOR_KEYS_MAX = 32  # devices per operator
ENVELOPES_MAX = 64  # held per key; expired envelopes are dropped first
# Cached decisions (key, right, session). The cache is cleared when full and at every change.
DECISIONS_KEPT = 1 << 16
ENDS_SOON_S = (60.0, 10.0)  # operators are warned this long before their envelope expires
GRANTORS_NAMED = 3  # operators named in a refusal who could grant the right
GRANTORS_KEPT_S = 10  # how long that list may be out of date
INVITATION_S = 600  # default lifetime of a code: both people are at work on it now
INVITATION_S_MAX = 7 * 86400
INVITATIONS_OPEN_MAX = 32  # at once on a machine
INVITATIONS_KEPT = 256  # ended invitations, for the inviter and for a joiner whose answer was lost
INVITATION_KEPT_S = 86400  # an ended invitation is kept at most this long
INVITATION_GUESSES = 3  # wrong codes until an invitation is void
WRONG_CODES, WRONG_CODES_S = 10, 60  # wrong codes on a machine in so many seconds: joins pause

# --- turns, waits, ends -------------------------------------------------------------------------
CONNECTION_SILENT_S = 30.0  # without acknowledgement; then the peer of a connection is silent
TURN_IDLE_S = 10.0  # a holder that has not written for this long loses the turn
TURN_GONE_S = 900.0  # a seized turn is free when its holder had no client for this long
TURN_REQUESTS_MAX = 64  # operators that wait for the turn of a session
OBSERVE_INTERVAL_S = 0.2  # polling of live state that has no kernel event, only while needed
END_HUP_WAIT_S = 2.0  # `end` sends HUP, waits this long, sends TERM …
END_TERM_WAIT_S = 3.0  # … waits this long, and sends KILL
EXIT_DRAIN_S = 0.3  # after the root process exits, other processes may still print for this long
ENDED_KEPT_S = 24 * 3600.0  # ended sessions stay listed this long
ENDED_KEPT_COUNT = 200
CANON_LINE_BYTES = 4095  # canonical mode silently drops the rest of a longer line (measured)
RUN_TEXT_BYTES = 1 * MiB
RUN_TRIGGER_WAIT_S = 15.0  # from typing the trigger to the shell's mark that the run began

# --- client -------------------------------------------------------------------------------------
START_WAIT_S = 30.0  # until a freshly started host answers: a busy machine takes its time
CONNECT_WAIT_S = 5.0  # until a host answers an introduction; also for hosts that keep dying
CONNECT_ATTEMPTS = 3  # at least, however long each takes: a busy machine starts a host slowly
RECONNECT_FIRST_S, RECONNECT_MAX_S = 0.02, 0.5
UNACKED_INPUT_BYTES = 1 * MiB  # keys typed while the host is away
# Input in flight of one attached client: less than a socket's buffer and than the host's queue.
INPUT_IN_FLIGHT_BYTES = 96 * KiB
ACK_EVERY_INPUTS = 16
SEEN_EVERY_BYTES = 256 * KiB  # how often a viewer that reads the ring reports its position
ONCE_CHARS = 128  # of an idempotency key
REPLY_WAIT_S = 30.0  # an ordinary request

# --- relay: outer frames, sealed channels -------------------------------------------------------
SEALED_BYTES = 65_535  # a single message of a sealed channel: Noise allows no more
OUTER_BYTES = SEALED_BYTES + 32  # a single frame with its header; every other kind is shorter
BODY_BYTES = SEALED_BYTES - 16 - 4  # plaintext of one sealed message, without tag and header
# Credit of each direction of a stream: what may be under way, so a relay never holds more.
STREAM_WINDOW_BYTES = 256 * KiB
STREAMS_MAX = 4096  # open at once on a connection to a relay
PASSES_MAX = 1024  # per registration (at 34 bytes each, all fit into a frame)
# A key that lost its rights reaches the host through a relay for this long, to learn the reason.
REVOKED_TOLD_S = 30 * 24 * 3600.0
SOFTWARE_CHARS = 64  # the name by which a program introduces itself
CLOSE_REASON_CHARS = 200
PING_S_MAX = 3600  # a relay may not ask for longer silence than this
RELAY_NAME_CHARS = 255  # the relay as the host dialled it (a DNS name has 253)
REMOTE_WAIT_S = 10.0  # until a machine answers through its relay
# A client's queue towards its relay. Credit keeps data far below this; the rest is answers to
# a relay that asks and does not read.
REMOTE_QUEUE_BYTES = 1 * MiB
REMOTE_AGAIN_MAX_S = 30.0  # longest pause between two attempts (core/sealed/backoff.py)
REMOTE_SILENCE_S = 10.0  # then the far end is asked; after twice this time it counts as gone
# Under a single key of a sealed channel, in each direction. The receiver enforces these too, with
# REKEY_SLACK as its tolerance.
REKEY_MESSAGES = 1 << 20
REKEY_BYTES = 1024 * MiB
REKEY_S = 3600.0
REKEY_SLACK = 2
# An HTTP request that a relay carries to a service, in plain text (wire/carried.py).
CARRIED_HEAD_BYTES = 32 * KiB
CARRIED_BODY_BYTES = 1 * MiB
CARRIED_ANSWER_BYTES = 64 * KiB  # less than a window: the answer needs no credit
CARRIED_MAX = 16  # requests under way at one service; each may hold a body

# --- relay: what its tenants may use ------------------------------------------------------------
RELAY_CONNECTIONS_MAX = 20_000
RELAY_STRANGERS_MAX = 1024  # connections without a token, key or pass so far: in total …
RELAY_STRANGERS_PER_ADDRESS = 64  # … and from an address (IPv6: a /64)
RELAY_HELLO_S = 5.0  # from the first byte of a connection to its HELLO, TLS and HTTP included
RELAY_ADMIT_S = 10.0  # from the first byte to a valid token, key or pass
RELAY_STRANGE_FRAMES = 16  # frames from a connection that has shown no credential
RELAY_WRONG_PASSES = 8  # on a connection; a pass has 256 bits, so this stops noise, not guesses
RELAY_PING_S = 20  # a silent peer is asked after this time and dropped after twice this time
RELAY_ACCEPT_S = 10.0  # for a host to answer an INCOMING
RELAY_TENANT_ROUTES = 1024  # hosts online at once
RELAY_TENANT_ROUTES_KNOWN = 4096  # remembered; the one that was away longest is forgotten first
RELAY_TENANT_STREAMS = 8192
RELAY_TENANT_CONNECTIONS = 4096
RELAY_TENANT_BYTES_S = 256 * MiB  # received, over all connections of a tenant
RELAY_TENANT_BURST_S = 1.0  # after a rest, the bytes of this time may come at once
RELAY_FRAME_COST_BYTES = 64  # the least that a frame counts: small frames cost work, not bytes
RELAY_PAUSE_S_MAX = 5.0  # a throttled connection is read again by then, well before it seems dead
RELAY_HOST_STREAMS = 4096  # open at once to a host
RELAY_CLIENT_STREAMS = 64  # per client connection: all their windows fit into its queue
RELAY_WATCHES = 1024  # per client connection
RELAY_ROUTE_KEPT_S = 90 * 86400  # a route not seen for this long has to be enrolled again
# Bytes waiting for a connection's socket. All windows of a client are smaller, so a queue of
# this length belongs to a host that reads nothing.
RELAY_QUEUE_BYTES = 20 * MiB
RELAY_PRESSURE_BYTES = 2 * MiB  # with this much queued for a host, its clients are not read
RELAY_QUEUES_BYTES = 512 * MiB  # over all connections; beyond it the longest queue is dropped
RELAY_SLOW_READER_S = 30.0  # for a socket that takes none of the bytes queued for it
RELAY_STOP_S = 2.0  # to tell all peers that the relay restarts
RELAY_TOKENS_MAX = 10_000  # ever made, revoked tokens included
RELAY_CONTROL_BYTES = 64 * KiB  # a single request on the relay's own socket
RELAY_HOOK_BODY_S = 10.0  # from the first byte of a webhook to the last byte of its body
RELAY_HOOK_ANSWER_S = 20.0  # for the service to answer; providers wait 10 to 30 s
RELAY_HOOKS_PER_S = 20.0  # of one route
RELAY_HOOKS_BURST = 100.0  # after a rest, this many may come at once

# ---------------------------------------------------------------- leases (core/lease)
LEASE_TERM_S = 10.0  # etcd needs some 1.5 s for a new leader
LEASE_TERM_MIN_S, LEASE_TERM_MAX_S = 1.0, 3600.0
# Both clocks together: quartz is below 0.01%, a clock that NTP corrects below 0.1%.
LEASE_DRIFT = 0.05
LEASE_DRIFT_MIN = 0.01
