"""Every bound of the system, by name, with its reason.

A queue, buffer, message or wait without an entry here is a defect. Units are the last word of a name.
"""

KiB = 1024
MiB = 1024 * KiB

# --- terminal sizes -------------------------------------------------------------------------------------------
COLS_MIN, ROWS_MIN = 2, 2  # a stray 1x1 or 0x0 client must not ruin a full-screen program
COLS_MAX, ROWS_MAX = (
    1000,
    1000,
)  # "gigantic pane" is a known way to exhaust a terminal server's memory
COLS_DEFAULT, ROWS_DEFAULT = 80, 24

# --- keeper: ring, input, exits -------------------------------------------------------------------------------
RING_BYTES = 8 * MiB  # history kept per session; pages are only used once written
RING_BYTES_MIN = 64 * KiB
RING_BYTES_MAX = 1024 * MiB
PTY_READ_BYTES = 64 * KiB  # one readv; the kernel hands out about 4 KiB at a time anyway
PTY_READS_PER_WAKE = 32  # then other descriptors get their turn
PTY_BUSY_BYTES = (
    2 * KiB
)  # after a read of this much there is more, nearly always; after less nothing
HOST_AWAY_MAX_S = 24 * 3600.0
GATE_AWAY_S = 10.0  # no host for this long: execs that wait for the gate are refused
HOST_AWAY_S = (
    10.0  # no progress of the host for this long: roll the ring rather than block programs
)
INPUT_QUEUE_BYTES = 1 * MiB  # typed but not yet taken by the program; beyond it inputs are refused
INPUT_QUEUE_ACTS = 4096  # ... in at most this many pieces: what was withdrawn fits into one packet
INPUT_CHUNK_BYTES = 64 * KiB  # one input packet
ORIGINS_KEPT = 256  # clients whose last applied sequence the keeper remembers (exactly-once)
REAPED_KEPT = 64  # exit codes of orphans kept for the host
LABEL_BYTES = 32 * KiB  # the host's own description of a session, opaque to the keeper
SPAWN_BYTES = (
    4 * MiB
)  # a spawn request: argv and environment (the kernel's own limit is about 2 MiB)
SPAWN_WAIT_S = 20.0  # from asking the nursery to a keeper that answers
KEEPER_PACKET_BYTES = 128 * KiB  # one packet between host and keeper
SNAPSHOT_BYTES = 64 * MiB  # the latest screen with its scrollback, in the keeper's second memfd
KEEPER_BACKLOG = 8  # connections that have not said who they are; the oldest gives way
KEEPER_EVENTS_PER_WAKE = 16
KEEPER_NAME_BYTES = (
    80  # a session's id, and its socket's file name (a unix socket's whole path has 107)
)
KEEPER_LOG_BYTES = 1 * MiB  # what went wrong and could be told to nobody; begun anew when larger
LISTEN_BACKLOG = 64  # connections that wait to be accepted
NURSERY_PAUSE_S = 0.1  # after an accept that failed for want of descriptors
SIGNAL_ROUNDS = 8  # a tree that forks while it is signalled is walked again, so often
CONTAINED_PATHS = 256  # hidden, fresh or kept paths of one contained session
BELLS_MAX = 64  # viewers on this machine that read one ring themselves; more are served by the host

# --- host: frames and connections -----------------------------------------------------------------------------
FRAME_BYTES = 4 * MiB  # one frame to a client (a painted screen with scrollback is the largest)
REQUEST_BYTES = 2 * MiB  # one frame from a client (the text of a `run`, an environment)
HELLO_WAIT_S = 5.0  # a connection that does not introduce itself is closed
CLIENTS_MAX = 1024  # connections to one host; when there are more, the oldest that has not said who it is gives way
OPERATOR_CLIENTS_MAX = 512  # of one operator: nobody can keep the others out
SESSIONS_MAX = 4096
NAME_CHARS = 64
OUTPUT_CHUNK_BYTES = 128 * KiB  # one OUTPUT frame
REPLY_QUEUE_BYTES = (
    8 * MiB
)  # answers queued for one client that does not read; beyond it: disconnected
EVENTS_QUEUED = 256  # facts queued for one viewer; beyond it: it is told to refresh

# --- viewers --------------------------------------------------------------------------------------------------
PACE_WINDOW_S = 0.25  # a viewer that paces the program must move at least ...
PACE_BYTES = 256 * KiB  # ... this far in that time (1 MB/s), or it is lagging and paces nobody
RUN_PACE_WINDOW_S = (
    10.0  # the caller of `run` asked for this output: more patience before bytes are lost
)
VIEW_DELAY_S = 0.02  # screens are derived this much later than the bytes flow
VIEW_SLICE_BYTES = 256 * KiB  # fed to one emulator before another session gets its turn
SNAPSHOT_EVERY_BYTES = (
    3 * MiB
)  # must be well below RING_BYTES: the keeper never rolls past the last snapshot
SNAPSHOT_QUIET_S = 1.0  # and after a second of quiet
SCROLLBACK_LINES = 5_000  # kept by the host per session
SCROLLBACK_PAINTED = 1_000  # lines of it sent to a terminal that attaches
RENDER_INTERVAL_S = 0.033  # viewers of another size are redrawn at most this often

# --- operators ------------------------------------------------------------------------------------------------
OPERATORS_MAX = 4096  # known on one machine, revoked ones included: their names stay taken
OPERATOR_KEYS_MAX = 32  # devices of one operator
ENVELOPES_MAX = 64  # held by one key; what has ended gives way
DECISIONS_KEPT = (
    1 << 16
)  # (key, right, session) that were answered yes; all forgotten when more, and at any change
ENDS_SOON_S = (60.0, 10.0)  # before an envelope ends, whoever watches or types under it is told
GRANTORS_NAMED = 3  # in a refusal
GRANTORS_KEPT_S = 10  # how long "who could grant it" may be out of date in a refusal
INVITATION_S = 600  # how long a code counts if nobody says otherwise: two people are at it now
INVITATION_S_MAX = 7 * 86400  # ... and at most
INVITATIONS_OPEN_MAX = 32  # at once on one machine
INVITATIONS_KEPT = 256  # that have ended, for the inviter to see and for who lost the answer ...
INVITATION_KEPT_S = 86400  # ... and for at most this long
INVITATION_GUESSES = 3  # wrong codes for one invitation: then it is void
WRONG_CODES, WRONG_CODES_S = (
    10,
    60,
)  # wrong codes on one machine: so many in so many seconds, then nobody joins for a while

# --- turns, waits, ends ---------------------------------------------------------------------------------------
TURN_IDLE_S = 10.0  # a holder that has not written for this long holds nothing
TURN_REQUESTS_MAX = 64  # operators that wait for the turn of one session
OBSERVE_INTERVAL_S = (
    0.2  # live state without kernel events is looked at this often, only while someone waits
)
END_HUP_WAIT_S = 2.0  # `end`: HUP, then ...
END_TERM_WAIT_S = 3.0  # ... TERM, then KILL
EXIT_DRAIN_S = 0.3  # after the root process exits: how long stragglers may still print
ENDED_KEPT_S = 24 * 3600.0  # ended sessions stay listed this long
ENDED_KEPT_COUNT = 200
WAIT_DEFAULT_S = 0.0  # 0: no limit
CANON_LINE_BYTES = 4095  # canonical mode silently drops what exceeds this in one line (measured)
RUN_TEXT_BYTES = 1 * MiB
RUN_TRIGGER_WAIT_S = 15.0  # from typing the trigger to the shell's mark that the run began

# --- client ---------------------------------------------------------------------------------------------------
START_WAIT_S = (
    30.0  # until a host that was just started and still runs answers: a busy machine takes its time
)
CONNECT_WAIT_S = (
    5.0  # until a host answers who introduces itself; and for hosts that die again and again
)
RECONNECT_FIRST_S, RECONNECT_MAX_S = 0.02, 0.5
UNACKED_INPUT_BYTES = 1 * MiB  # keys typed while the host is away
INPUT_IN_FLIGHT_BYTES = (
    96 * KiB
)  # of one attached client: less than a socket's buffer, far less than the host keeps for a session
ACK_EVERY_INPUTS = 16
SEEN_EVERY_BYTES = 256 * KiB  # how often a viewer that reads the ring itself says how far it is
REPLY_WAIT_S = 30.0  # an ordinary request

# --- relay: outer frames, sealed channels ---------------------------------------------------------------------
SEALED_BYTES = 65_535  # one message of a sealed channel: Noise allows no more
OUTER_BYTES = SEALED_BYTES + 32  # one frame: that and its header; every other kind is shorter
BODY_BYTES = (
    SEALED_BYTES - 16 - 4
)  # plaintext in one sealed message: without tag and the body's own header
STREAM_WINDOW_BYTES = (
    256 * KiB
)  # credit of each direction of a stream when it opens, and the most that is ever outstanding: a relay holds no more
STREAMS_MAX = 4096  # open at once on one connection to a relay
PASSES_MAX = 1024  # of one registration (at 34 bytes each they fit into one frame)
SOFTWARE_CHARS = 64  # how a program calls itself
CLOSE_REASON_CHARS = 200
PING_S_MAX = 3600  # a relay may not ask for longer silence than this
RELAY_NAME_CHARS = 255  # the relay as its host dialled it (a DNS name has 253)
REMOTE_WAIT_S = 10.0  # until a machine answers through its relay
REMOTE_QUEUE_BYTES = (
    1 * MiB
)  # of a client, towards its relay; credit holds data far below it, so it is answers that a relay asks for and does not take
REMOTE_AGAIN_MAX_S = 30.0  # between two attempts to reach a relay, or a machine through one, when an outage is long (core/patience.py)
REMOTE_SILENCE_S = (
    10.0  # without a word from the far end before it is asked; twice as long, and it is gone
)
REKEY_MESSAGES = (
    1 << 20
)  # under one key of a sealed channel, in each direction; also the receiver insists ...
REKEY_BYTES = 1024 * MiB
REKEY_S = 3600.0
REKEY_SLACK = 2  # ... with this factor

# --- relay: what one lets others use --------------------------------------------------------------------------
RELAY_CONNECTIONS_MAX = 20_000  # in all
RELAY_STRANGERS_MAX = 1024  # connections that have shown no token, key or pass yet: in all ...
RELAY_STRANGERS_PER_ADDRESS = 64  # ... and from one address (IPv6: one /64)
RELAY_HELLO_S = 5.0  # from the first byte of a connection to its HELLO: TLS, HTTP and all
RELAY_ADMIT_S = 10.0  # ... to a token, key or pass that counts
RELAY_STRANGE_FRAMES = 16  # frames from somebody who has shown nothing yet
RELAY_WRONG_PASSES = (
    8  # on one connection; a pass has 256 bits, so this is about noise, not guesses
)
RELAY_PING_S = 20  # who was silent for this long is asked; twice this long: gone
RELAY_ACCEPT_S = 10.0  # a host that does not answer an INCOMING
RELAY_TENANT_ROUTES = 1024  # hosts online at once
RELAY_TENANT_ROUTES_KNOWN = 4096  # remembered; the one that was away for longest gives way
RELAY_TENANT_STREAMS = 8192
RELAY_TENANT_CONNECTIONS = 4096
RELAY_TENANT_BYTES_S = 256 * MiB  # received, of all its connections together ...
RELAY_TENANT_BURST_S = 1.0  # ... and after a rest what would come in this time, at once
RELAY_FRAME_COST_BYTES = 64  # the least that a frame counts: small ones cost work, not bytes
RELAY_PAUSE_S_MAX = 5.0  # read again after this: well below the time in which silence means death
RELAY_HOST_STREAMS = 4096  # open at once to one host
RELAY_CLIENT_STREAMS = (
    64  # ... of one client's connection: with a window each they fit into its queue
)
RELAY_WATCHES = 1024  # of one client's connection
RELAY_ROUTE_KEPT_S = 90 * 86400  # a route that was not seen for this long has to be enrolled again
RELAY_QUEUE_BYTES = (
    20 * MiB
)  # waiting for one connection's socket: above all windows of a client, so it is a host that reads nothing
RELAY_PRESSURE_BYTES = (
    2 * MiB
)  # ... for a host's: clients that send to it are not read until it is shorter
RELAY_QUEUES_BYTES = 512 * MiB  # ... for all of them: then the longest queue goes
RELAY_SLOW_READER_S = 30.0  # a socket that takes nothing of what waits for it
RELAY_STOP_S = 2.0  # to tell everybody that the relay restarts
RELAY_TOKENS_MAX = 10_000  # made, revoked ones included
RELAY_CONTROL_BYTES = 64 * KiB  # one request on the relay's own socket
