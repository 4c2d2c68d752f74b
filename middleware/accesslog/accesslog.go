// SPDX-License-Identifier: Apache-2.0

// Package accesslog logs one line for each call, on the client or on the server: the method, the
// peer or the endpoint, the outcome, and the duration.
//
// It is an observer, outside of all middleware. It sees calls that middleware refuses. A call with
// several attempts is one line. Asynchronous calls still need no goroutine. It allocates nothing
// beyond what the logger allocates, and nothing at all for a line below the logger's level.
//
// The level follows the outcome:
//
//	Info   success, and errors that callers cause every day: canceled, invalid_argument, not_found,
//	       already_exists, unauthenticated
//	Warn   other errors, and what took as long as Options.Slow says
//	Error  something is broken: unknown, unimplemented, internal, data_loss
//
// A line has only the metadata that Options.Metadata names, and the text of errors only with
// Options.ErrorText, because both may contain secrets. Options.Attrs adds attributes of your own,
// such as the user.
package accesslog

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options changes what is logged. The zero value logs every call.
type Options struct {
	// Slow is the duration from which a call is logged as a warning. It does not apply to streams,
	// which may be long and healthy. Default: none.
	Slow time.Duration
	// Skip names methods whose calls are logged only if they fail or are slow, for example
	// "yodel.Health". Default none.
	Skip []string
	// Metadata names the keys whose values are logged. Default none.
	Metadata []string
	// ErrorText adds the text of errors. Default false, because methods may put anything into it.
	ErrorText bool
	// Attrs returns attributes to add to the line of a call that is logged, for example the user.
	// The context is that of the observers, outside of all middleware. So middleware or a method
	// that identifies the user sets Call.Tenant or Call.Metadata, where Attrs finds it. Default:
	// none.
	Attrs func(ctx context.Context, call *yodel.Call) []slog.Attr
}

// To returns an observer that logs to logger, or to slog.Default() if logger is nil. The attributes
// of a line are
//
//	method    its name
//	peer      on the server, the caller's address
//	endpoint  on the client, the address of the last attempt, if there was one
//	tenant    on whose behalf the call is made, see yodel.Call.Tenant, if it has one
//	code      of the error, or ok
//	took      from the beginning of the call to its end
//	attempt   which attempt of the caller's this was, from 1; on the client the last one, 0 if nothing was sent
//	id        of the error, if it has one
//	slow      true, for slow calls
//	oneway    true, for calls without a reply
//	err       what the error says, see Options.ErrorText
//	metadata  a group of what Options.Metadata names
//
// and those of Options.Attrs.
func To(logger *slog.Logger, o *Options) yodel.Observer {
	l := &log{logger: logger}
	if o != nil {
		l.opts = *o
	}
	return yodel.Observer{End: l.end}
}

type log struct {
	logger *slog.Logger
	opts   Options
}

func (l *log) end(ctx context.Context, call *yodel.Call, err error) {
	took := call.Took()
	code := yodel.CodeOf(err)
	slow := l.opts.Slow > 0 && took >= l.opts.Slow && !call.Streams()
	level := levelOf(code)
	if slow {
		level = max(level, slog.LevelWarn)
	}
	logger := cmp.Or(l.logger, slog.Default())
	if err == nil && !slow && slices.Contains(l.opts.Skip, call.Method) || !logger.Enabled(ctx, level) {
		return
	}
	var memory [12]slog.Attr
	attrs := append(memory[:0], slog.String("method", call.Method))
	attempt := call.Attempt
	if peer := call.Peer(); peer != nil {
		attrs = append(attrs, slog.String("peer", peer.Addr.String()))
		attempt++ // the server knows how many attempts there were before
	} else if call.Endpoint != nil {
		attrs = append(attrs, slog.String("endpoint", call.Endpoint.Addr()))
	}
	if call.Tenant != "" {
		attrs = append(attrs, slog.String("tenant", call.Tenant))
	}
	attrs = append(attrs, slog.String("code", code.String()), slog.Duration("took", took), slog.Int("attempt", attempt))
	if slow {
		attrs = append(attrs, slog.Bool("slow", true))
	}
	if call.OneWay {
		attrs = append(attrs, slog.Bool("oneway", true))
	}
	attrs = l.appendError(attrs, err)
	attrs = l.appendMetadata(attrs, call.Metadata)
	if l.opts.Attrs != nil {
		attrs = append(attrs, l.opts.Attrs(ctx, call)...)
	}
	logger.LogAttrs(ctx, level, "yodel: call", attrs...)
}

func (l *log) appendError(attrs []slog.Attr, err error) []slog.Attr {
	if e, ok := errors.AsType[*yodel.Error](err); ok && e.ID != "" {
		attrs = append(attrs, slog.String("id", e.ID))
	}
	if err != nil && l.opts.ErrorText {
		attrs = append(attrs, slog.String("err", err.Error()))
	}
	return attrs
}

func (l *log) appendMetadata(attrs []slog.Attr, md yodel.Metadata) []slog.Attr {
	var named []slog.Attr
	for _, key := range l.opts.Metadata {
		if value, ok := md[key]; ok {
			named = append(named, slog.String(key, value))
		}
	}
	if named == nil {
		return attrs
	}
	return append(attrs, slog.Attr{Key: "metadata", Value: slog.GroupValue(named...)})
}

func levelOf(code yodel.Code) slog.Level {
	switch code {
	case 0, yodel.Canceled, yodel.InvalidArgument, yodel.NotFound, yodel.AlreadyExists, yodel.Unauthenticated:
		return slog.LevelInfo
	case yodel.Unknown, yodel.Unimplemented, yodel.Internal, yodel.DataLoss:
		return slog.LevelError
	default:
		return slog.LevelWarn
	}
}
