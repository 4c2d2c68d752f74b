// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// This file is screen S11, the audit log.

const (
	maxEntries   = 1000     // in memory
	maxAuditFile = 16 << 20 // bytes
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
	path string
	log  *slog.Logger

	mu      sync.Mutex
	entries []entry // the oldest first
	file    *os.File
	size    int64
	failed  error // why the file cannot be written
}

// openAudit opens the file of an audit log and reads its newest entries. Path may be empty.
func openAudit(path string, log *slog.Logger) (*audit, error) {
	a := &audit{path: path, log: log}
	if path == "" {
		return a, nil
	}
	return a, a.open()
}

func (a *audit) open() error {
	f, err := os.OpenFile(a.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 2*maxBody)
	for lines.Scan() {
		var e entry
		if json.Unmarshal(lines.Bytes(), &e) == nil { // a torn line is left out
			a.keep(e)
		}
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("open the audit log: %w", err)
	}
	a.file, a.size = f, info.Size()
	return nil
}

// keep adds an entry to those in memory.
func (a *audit) keep(e entry) {
	if len(a.entries) == maxEntries {
		a.entries = slices.Delete(a.entries, 0, 1)
	}
	a.entries = append(a.entries, e)
}

// add records what a user has done, and logs it.
func (a *audit) add(r *http.Request, user User, e entry) {
	e.At, e.User, e.Role, e.From = time.Now().UTC(), user.Name, user.Role.String(), clientOf(r).String()
	a.log.Info("yodel: console", "action", e.Action, "object", e.Object, "user", e.User, "role", e.Role, "from", e.From,
		"before", e.Before, "after", e.After, "reason", e.Reason, "result", e.Result)
	line, err := json.Marshal(e)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keep(e)
	if a.file == nil {
		return
	}
	if err == nil && a.size > maxAuditFile {
		err = a.rotate()
	}
	if err == nil {
		var n int
		n, err = a.file.Write(append(line, '\n'))
		a.size += int64(n)
	}
	if a.failed = err; err != nil {
		a.log.Error("yodel: the audit log of the console cannot be written", "err", err)
	}
}

// rotate begins a new file.
func (a *audit) rotate() error {
	if err := a.file.Close(); err != nil {
		return err
	}
	if err := os.Rename(a.path, a.path+".old"); err != nil {
		return err
	}
	f, err := os.OpenFile(a.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	a.file, a.size = f, 0
	return nil
}

func (a *audit) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
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
