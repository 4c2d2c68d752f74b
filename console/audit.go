// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// This file is screen S11, the audit log.

const (
	maxEntries   = 1000     // in memory
	maxAuditFile = 16 << 20 // bytes
	maxField     = 1 << 10  // bytes of a field of an entry
	maxLine      = 64 << 10 // bytes of an entry as JSON, which takes up to 6 bytes for one
	maxReason    = 256      // bytes of the reason for a setting
)

// An entry of the audit log says who has changed what, when and why. It has no arguments of calls
// and no tokens.
type entry struct {
	At     time.Time `json:"at"`
	User   string    `json:"user,omitempty"`
	Role   string    `json:"role"`
	From   string    `json:"from"`   // the address of the client
	Action string    `json:"action"` // "login", "logout", "invite", "rule", "unrule", "rollback", "instance", "call"
	Object string    `json:"object,omitempty"`
	Before string    `json:"before,omitempty"`
	After  string    `json:"after,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Result string    `json:"result"` // "ok", "refused", or the error
	Undo   *undo     `json:"undo,omitempty"`
}

// An undo is the request that takes a change back: a POST of Body, with a reason, to Path.
type undo struct {
	Path string         `json:"path"` // "instance" or "rules/rollback"
	Body map[string]any `json:"body"`
}

// An audit keeps entries. It is safe for concurrent use.
type audit struct {
	path string // empty if there is no file
	log  *slog.Logger

	mu      sync.Mutex
	entries []entry  // the oldest first
	file    *os.File // nil if it is closed, or cannot be opened
	size    int64
	torn    bool  // the last line has no end
	closed  bool  // for good
	failed  error // why the file cannot be written
}

// openAudit opens the file of an audit log and reads its newest entries. Path may be empty.
func openAudit(path string, log *slog.Logger) (*audit, error) {
	a := &audit{path: path, log: log}
	if path == "" {
		return a, nil
	}
	err := a.open()
	if err == nil {
		if err = a.read(); err != nil {
			_ = a.file.Close() // the error above matters more
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	return a, nil
}

// open opens the file for reading and appending.
func (a *audit) open() error {
	f, err := os.OpenFile(a.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > 0 {
		last := make([]byte, 1)
		_, err = f.ReadAt(last, info.Size()-1)
		a.torn = last[0] != '\n'
	}
	if err != nil {
		_ = f.Close() // the error above matters more
		return err
	}
	a.file, a.size = f, info.Size()
	return nil
}

// read keeps the newest entries of the file. It leaves out torn lines, and those that are longer
// than any that add writes.
func (a *audit) read() error {
	in := bufio.NewReaderSize(a.file, maxLine)
	long := false // the line has begun before
	for {
		line, err := in.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		var e entry
		if !long && !errors.Is(err, bufio.ErrBufferFull) && json.Unmarshal(line, &e) == nil {
			a.keep(e)
		}
		if long = errors.Is(err, bufio.ErrBufferFull); errors.Is(err, io.EOF) {
			return nil
		}
	}
}

// keep adds an entry to those in memory.
func (a *audit) keep(e entry) {
	if len(a.entries) == maxEntries {
		a.entries = slices.Delete(a.entries, 0, 1)
	}
	a.entries = append(a.entries, e)
}

// field returns the first maxField bytes of a field.
func field(text string) string {
	if len(text) <= maxField {
		return text
	}
	return strings.ToValidUTF8(text[:maxField], "") + " …"
}

// add records what a user has done, and logs it.
func (a *audit) add(r *http.Request, user User, e entry) {
	e.At, e.User, e.Role, e.From = time.Now().UTC(), field(user.Name), user.Role.String(), r.RemoteAddr
	e.Object, e.Before, e.After, e.Reason, e.Result = field(e.Object), field(e.Before), field(e.After), field(e.Reason), field(e.Result)
	cmp.Or(a.log, slog.Default()).Info("yodel: console", "action", e.Action, "object", e.Object, "user", e.User, "role", e.Role, "from", e.From,
		"before", e.Before, "after", e.After, "reason", e.Reason, "result", e.Result)
	line, err := json.Marshal(e)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keep(e)
	if a.path == "" || a.closed {
		return
	}
	if err == nil {
		err = a.write(append(line, '\n'))
	}
	if a.failed = err; err != nil {
		cmp.Or(a.log, slog.Default()).Error("yodel: the audit log of the console cannot be written", "err", err)
	}
}

// write appends a line to the file. If a new file cannot be begun, the line goes to the old one,
// and the next write tries again.
func (a *audit) write(line []byte) error {
	var old error
	if a.file != nil && a.size > maxAuditFile {
		old = errors.Join(a.file.Close(), os.Rename(a.path, a.path+".old"))
		a.file = nil
	}
	if a.file == nil {
		if err := a.open(); err != nil {
			return errors.Join(old, err)
		}
	}
	if a.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := a.file.Write(line)
	a.size += int64(n)
	if n > 0 {
		a.torn = n < len(line)
	}
	return errors.Join(old, err)
}

func (a *audit) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.file == nil {
		return nil
	}
	f := a.file
	a.file = nil
	return f.Close()
}

// list returns the entries, the newest first.
func (a *audit) list() (entries []entry, failed error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	entries = slices.Clone(a.entries)
	slices.Reverse(entries)
	return entries, a.failed
}

// audits serves the audit log.
func (c *Console) audits(*http.Request) (any, error) {
	entries, failed := c.audit.list()
	out := map[string]any{"entries": entries, "file": c.opts.Audit != ""}
	if failed != nil {
		out["failed"] = failed.Error()
	}
	return out, nil
}
