// SPDX-License-Identifier: Apache-2.0

// Package catalogue lists the errors that yodel itself makes: their IDs, their codes, and their
// traits.
package catalogue

import "maps"

// The codes of errors, which are gRPC's. The root's Code documents them.
const (
	_ uint16 = iota // no error
	Canceled
	Unknown
	InvalidArgument
	DeadlineExceeded
	_ // not_found
	AlreadyExists
	PermissionDenied
	ResourceExhausted
	FailedPrecondition
	Aborted
	_ // out_of_range
	Unimplemented
	Internal
	Unavailable
	DataLoss
	Unauthenticated
	// Disabled is not the code of an error. Calls that a rule of an operator refused are counted
	// under it, and not under the code that their callers got.
	Disabled
)

// Traits say what an error is about. Code checks traits and never compares IDs or texts. IDs are
// for people, and errors of handlers and of other systems have no ID.
type Traits uint16

const (
	// AboutMessage says that the types or the size of a message caused the error. Every server
	// would return it.
	AboutMessage Traits = 1 << iota
	// AboutConnection says that there is no connection to the server, or the connection ended.
	AboutConnection
	// OfClient says that the error comes from the client itself. It says nothing about the health
	// of the server.
	OfClient
	// Stale says that the connection was at fault. Another connection to the same server may work.
	Stale
	// Draining says that the server is shutting down. Such errors are stale.
	Draining
	// Impatient says that the caller stopped waiting.
	Impatient
	// NotRepeated says that the call was not sent again, because the server to which it would have
	// gone does not remember its idempotency key.
	NotRepeated
	// Breach says that the peer broke the protocol, which ended the connection.
	Breach
	// Unencoded says that the side that makes the error could not encode a message.
	Unencoded
	// Ruled says that a rule of an operator refused the call: see Disabled.
	Ruled
	// Waited says that the call waited for another one on a connection, and was not sent because
	// the connection ended. Such errors are stale.
	Waited
)

// An Entry describes one situation in which yodel itself fails a call. docs/errors.md has the long
// form of each entry.
type Entry struct {
	Code   uint16
	Traits Traits
	Title  string
	Next   string // what to do about it
}

// The IDs of the errors that a connection makes by itself, of those for the end of a call without
// an answer, and of calls that are not sent.
const (
	NoneUsable       = "YDL1002"
	NoReply          = "YDL1004"
	DeadlinePassed   = "YDL1005"
	CallCanceled     = "YDL1006"
	ClientClosed     = "YDL1007"
	WindowFull       = "YDL1008"
	OrderInterrupted = "YDL1009"
	Unrepeatable     = "YDL1010"
	ForeignServer    = "YDL1101"
	NoHandshake      = "YDL1102"
	Unreachable      = "YDL1103"
	ConnectionLost   = "YDL1104"
	ServerSilent     = "YDL1105"
	ProtocolBroken   = "YDL1106"
	NotAccepted      = "YDL1107"
	ResolverFailed   = "YDL1201"
	NoService        = "YDL2001"
	NoMethod         = "YDL2002"
	NoCodec          = "YDL2003"
	NoCompressor     = "YDL2004"
	WrongShape       = "YDL2005"
	WrongKind        = "YDL2006"
	StreamMisused    = "YDL2007"
	NothingServed    = "YDL2010"
	RequestUnfit     = "YDL2101"
	ReplyUnfit       = "YDL2102"
	Unencodable      = "YDL2103"
	ReplyUnencodable = "YDL2104"
	RequestTooLarge  = "YDL2201"
	ReplyTooLarge    = "YDL2202"
	MetadataTooLarge = "YDL2203"
	UnpackedTooLarge = "YDL2204"
	ReplyBroken      = "YDL2205"
	TooManyOpen      = "YDL3002"
	ShuttingDown     = "YDL3004"
	EarlierRefused   = "YDL3005"
	NoMemory         = "YDL3007"
	RequestCutShort  = "YDL3008"
	TurnTooLate      = "YDL3203"
	NotRegistered    = "YDL4001"
	HandlerGoexited  = "YDL5002"
)

// Of returns the entry of an ID, or an empty entry if the ID is unknown.
func Of(id string) Entry { return entries[id] }

// All returns a copy of the catalogue, by ID.
func All() map[string]Entry { return maps.Clone(entries) }

// IDs never change their meaning.
var entries = map[string]Entry{
	"YDL1001": {Unavailable, OfClient, "no instance is known", "start an instance, or compare the service, the registry and the keys that the message names with those of the servers"},
	"YDL1002": {Unavailable, OfClient, "no instance is usable", "compare what the balancer's filter asks for with the records in the registry"},
	"YDL1003": {Unavailable, OfClient, "all attempts failed", "look at each attempt: is the server running, and is that its port?"},
	"YDL1004": {DeadlineExceeded, OfClient | Impatient, "no reply in time", "look at how long the method takes on the server (yodel.Stats), or allow more time"},
	"YDL1005": {DeadlineExceeded, OfClient | Impatient, "the deadline had passed before the call was sent", "find out what used the time up before this call, or allow more time"},
	"YDL1006": {Canceled, OfClient | Impatient, "the caller canceled the call", "nothing, if that was meant"},
	"YDL1007": {Canceled, OfClient | Impatient, "the client is closed", "make calls before Client.Close"},
	"YDL1008": {ResourceExhausted, 0, "the server's window is full", "let the call wait, or send fewer at once"},
	"YDL1009": {Aborted, OfClient, "the order of the key was interrupted", "find out what became of the earlier call, then make the call again if it still makes sense"},
	"YDL1010": {Aborted, OfClient | NotRepeated, "the call may have been executed, and no server that remembers its idempotency key can be reached", "find out what became of it, or let the servers share a memory of keys: once.Options.Store"},
	"YDL1101": {Unavailable, AboutConnection, "the server does not speak yodel", "check address and port, and that TLS is set up on both sides or on neither"},
	"YDL1102": {Unavailable, AboutConnection, "the server did not answer the handshake", "check that the server is not overloaded and that nothing in between swallows bytes"},
	"YDL1103": {Unavailable, AboutConnection, "the server could not be reached", "check that the server is running and reachable"},
	"YDL1104": {Unavailable, AboutConnection | Stale, "the connection was lost while the call was open", "declare the method idempotent if it may be executed twice, and retry it"},
	"YDL1105": {Unavailable, AboutConnection, "the server has been silent for too long", "check the network between client and server"},
	"YDL1106": {Internal, AboutConnection | Breach, "a breach of the protocol", "check that both sides run a released version, and report it"},
	"YDL1107": {Unavailable, AboutConnection, "the connection was refused by the server", "look at the server's log"},
	"YDL1108": {Unavailable, AboutConnection, "the TLS handshake failed", "compare the certificates, authorities and names that both sides were given; the message says which check failed, and on which side"},
	"YDL1109": {Unavailable, AboutConnection, "another server listens at the address", "compare the record of the instance with what runs there"},
	"YDL1110": {Unavailable, AboutConnection | Stale | Waited, "the connection ended while the call waited for another one", "nothing: the client sends the call again while it can reach a server"},
	"YDL1201": {Unavailable, OfClient, "the resolver failed", "check the registry"},
	"YDL1301": {Unavailable, OfClient, "the breaker of the endpoint is open", "find out why the calls before failed: the message has the last one's error"},
	"YDL1401": {ResourceExhausted, OfClient, "too many calls wait to be made again in the background", "see why they fail, or raise LaterOptions.Queue or QueueBytes"},
	"YDL1402": {Canceled, OfClient, "the client was closed before a call could be made again in the background", "keep the client until its calls are made, or take them over in LaterOptions.Dropped"},
	"YDL2001": {Unimplemented, 0, "the server has no such service", "check the name"},
	"YDL2002": {Unimplemented, 0, "the service has no such method", "check the name"},
	"YDL2003": {Unimplemented, 0, "the server does not have the codec", "add it to ServerOptions.Codecs"},
	"YDL2004": {Unimplemented, 0, "the server does not have the compressor", "add it to ServerOptions.Compressors"},
	"YDL2005": {InvalidArgument, 0, "several values were given where one is expected, or the other way round", "use yodel.Values for methods with several arguments or results, and only for these"},
	"YDL2006": {InvalidArgument, 0, "the method is of another kind", "call it as the kind that the message names: Method, Feed, Upload or Duplex"},
	"YDL2007": {FailedPrecondition, 0, "a stream was used after its end", "send nothing after End, and make a new call to range again"},
	"YDL2008": {InvalidArgument, 0, "the call has no client, or no context", "make the call with a client that is not nil, and with context.Background() in place of a nil context"},
	"YDL2009": {FailedPrecondition, OfClient, "the protocol of the instance keeps no order of calls", "send ordered calls only to servers that speak yodel"},
	"YDL2010": {Unimplemented, 0, "the peer serves nothing", "give it a server: ClientOptions.Server"},
	"YDL2101": {InvalidArgument, AboutMessage, "the request could not be decoded", "compare the argument types of both sides"},
	"YDL2102": {Internal, AboutMessage, "the reply could not be decoded", "compare the result types of both sides"},
	"YDL2103": {InvalidArgument, AboutMessage | Unencoded, "the request could not be encoded", "see whether the codec takes this type"},
	"YDL2104": {Internal, AboutMessage | Unencoded, "the reply could not be encoded", "see whether the codec takes this type"},
	"YDL2201": {ResourceExhausted, AboutMessage, "the request is too large", "send less, or raise Limits.MaxMessage in ServerOptions and in the caller's ClientOptions: a message has to fit both limits, and the error names the one that it exceeds"},
	"YDL2202": {ResourceExhausted, AboutMessage, "the reply is too large", "ask for less, or raise Limits.MaxMessage in ServerOptions and in the caller's ClientOptions: a message has to fit both limits, and the error names the one that it exceeds"},
	"YDL2203": {ResourceExhausted, AboutMessage, "the metadata is too large", "send less of it: what is large belongs in the message or in an attachment"},
	"YDL2204": {ResourceExhausted, AboutMessage, "the message is too large after decompression", "send less, or raise Limits.MaxDecompressed on the receiving side"},
	"YDL2205": {DataLoss, 0, "a message was damaged on its way", "check the network; the connection goes on"},
	"YDL3002": {ResourceExhausted, 0, "too many requests are open on the connection", "let the client heed the window, or raise Limits.MaxOpen or ServerOptions.MaxOpen on the server"},
	"YDL3003": {ResourceExhausted, 0, "too many connections", "raise ServerOptions.MaxConns"},
	"YDL3004": {Unavailable, Stale | Draining, "the server is shutting down", "nothing: such calls go to another instance if there is one"},
	"YDL3005": {Unavailable, Stale, "an earlier call with the same key was refused", "nothing: the client sends it again, in its place"},
	"YDL3007": {ResourceExhausted, 0, "there is no memory left for what peers make this side hold", "send less at a time, or raise MaxMemory of the options and of Limits on the side that the message names"},
	"YDL3008": {DeadlineExceeded, 0, "the rest of a request did not come in time", "check the network between client and server"},
	"YDL3101": {Unauthenticated, 0, "the caller is not known", "send a valid token"},
	"YDL3102": {PermissionDenied, 0, "the caller may not do this", "send a token that the server accepts, and if it is the right one, ask for the permission"},
	"YDL3103": {PermissionDenied, 0, "the server does not share its diagnostics", "set ServerOptions.Diagnostics, and let middleware decide who may ask"},
	"YDL3201": {ResourceExhausted, 0, "the concurrency limit and its queue are full", "call less often, retry elsewhere or later, or raise the limit if the server has room"},
	"YDL3202": {ResourceExhausted, 0, "the call's turn would not come in time", "call less often, retry elsewhere or later, or raise the limit if the server has room"},
	"YDL3203": {DeadlineExceeded, 0, "the deadline passed while the call waited for its turn", "look at what keeps the calls before it, or allow more time"},
	"YDL3301": {ResourceExhausted, 0, "a rate limit is used up", "retry after Error.RetryAfter, or let calls wait: rate.Limit.Wait"},
	"YDL3302": {Unavailable, 0, "the store of a rate limit does not answer", "check the store, or let each server count alone: leave out rate.Limit.Strict"},
	"YDL3401": {InvalidArgument, 0, "the idempotency key belongs to another call", "give each intent a key of its own, and send the same request with it"},
	"YDL3402": {Aborted, 0, "the outcome of the call with this key is not known", "find out what became of it, then make the call again with another key if it still makes sense"},
	"YDL3403": {AlreadyExists, 0, "the call with this key was executed, and its reply was not kept", "read the result another way, or raise once.Options.MaxReply or MaxBytes"},
	"YDL3404": {ResourceExhausted, 0, "there is no room for another idempotency key", "retry after Error.RetryAfter, or raise the bounds of the store"},
	"YDL3405": {Unavailable, 0, "the store of idempotency keys does not answer", "check the store"},
	"YDL3406": {Aborted, 0, "the idempotency key came so late that it may have been forgotten", "find out what became of the call, or raise once.Options.Keep"},
	"YDL3501": {Internal, 0, "the fallback has no reply that fits", "give the fallback a reply of the type that callers of the method want"},
	"YDL3511": {Unavailable, 0, "a fault was injected", "nothing: the fault was injected on purpose; fault.Injector.Rules returns the rules in force"},
	"YDL3521": {Unavailable, 0, "there is no endpoint to call", "start an instance, or check what the resolver was given and what Options.Only leaves out"},
	"YDL3522": {Unavailable, 0, "not all endpoints succeeded", "look at each error, and call those again that failed if it does no harm"},
	"YDL3523": {Unavailable, 0, "no endpoint succeeded", "look at each error"},
	"YDL3601": {FailedPrecondition, Ruled, "a rule refuses the call", "read the reason in the message, or ask the author of the rule; yodel rule lists the rules"},
	"YDL3602": {Unavailable, 0, "a rule answers the call with an error", "nothing: an operator has set a mock on purpose; yodel rule lists the rules"},
	"YDL3701": {InvalidArgument, 0, "the request breaks a rule", "correct the fields that the message names"},
	"YDL3702": {Internal, 0, "the reply breaks a rule", "correct the method: the message names the fields"},
	"YDL4001": {InvalidArgument, 0, "nothing was registered", "give the methods one of the shapes that Server.Register describes"},
	"YDL4002": {Unavailable, 0, "the server could not listen", "choose another address, or end the process that holds it"},
	"YDL4003": {InvalidArgument, 0, "the address is not usable", "write host:port, for example 127.0.0.1:8972"},
	"YDL4004": {FailedPrecondition, 0, "the server has been shut down", "make a new Server"},
	"YDL4005": {FailedPrecondition, 0, "the Connect hook calls the peer that it decides about", "call it from another goroutine, or when the hook has returned"},
	"YDL4006": {Aborted, 0, "calls were cut off when the server shut down", "raise DrainTimeout, or have the methods that the message names end sooner: they may watch Call.Draining or their context"},
	"YDL5001": {Internal, 0, "the handler panicked", "look in the server's log for the number in the message"},
	"YDL5003": {Internal, 0, "the handler returned neither a reply nor an error", "return a reply: an empty one, &Reply{}, if there is nothing to say"},
	"YDL5002": {Internal, 0, "the handler ended its goroutine", "return from the handler instead of calling runtime.Goexit (as t.FailNow does)"},
	"YDL5004": {Internal, 0, "code that was given to a client or a server panicked", "look in the log of this process for the number in the message"},
}
