// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/introspect"
)

// A sharedReason is the reason of one or more failed attempts.
type sharedReason struct {
	why   string
	at    []string // the addresses without duplicates
	times int
}

// Limits of a message.
const (
	maxReasons   = 3
	maxAddresses = 3
	maxMethod    = 100 // bytes of the name of a method
)

// Message describes a call whose attempts have all failed, in one line. It lists each reason once,
// with all its addresses. It shortens the longest reasons only if room bytes are too few for all of
// them.
func (r *Record) Message(method string, room int) string {
	made := r.Made()
	reasons := shareReasons(method, r.attempts)
	method = text.Cut(method, maxMethod)
	rest := made
	texts := make([]string, 0, maxReasons)
	shown := reasons[:min(len(reasons), maxReasons)]
	for _, reason := range shown {
		texts = append(texts, reason.why)
		rest -= reason.times
	}
	if len(shown) == 1 && rest == 0 {
		all := "all"
		if made == 2 {
			all = "both"
		}
		head := fmt.Sprintf("%s: %d attempts at %s failed, %s: ", method, made, addresses(shown[0].at), all)
		fit(texts, room-len(head))
		return head + texts[0]
	}
	head := fmt.Sprintf("%s: %d attempts failed:", method, made)
	more := ""
	if rest > 0 {
		more = fmt.Sprintf("; and %d more", rest)
	}
	heads := make([]string, 0, maxReasons)
	room -= len(head) + len(more) + len(shown) - 1
	for _, reason := range shown {
		at := " " + addresses(reason.at)
		if reason.times > len(reason.at) {
			at += fmt.Sprintf(" (%d times)", reason.times)
		}
		heads = append(heads, at+": ")
		room -= len(at) + len(": ")
	}
	fit(texts, room)
	for i := range texts {
		texts[i] = heads[i] + texts[i]
	}
	return head + strings.Join(texts, ";") + more
}

// shareReasons groups attempts by the reason of their failure. The reasons are in the order of
// their first appearance.
func shareReasons(method string, attempts []introspect.Attempt) (reasons []*sharedReason) {
	for i := range attempts {
		a := &attempts[i]
		why := "it succeeded" // but middleware made a further attempt
		if a.Code != "" {
			why = strings.TrimPrefix(strings.TrimPrefix(a.Message, method+": "), a.Addr+": ")
		}
		at := slices.IndexFunc(reasons, func(r *sharedReason) bool { return r.why == why })
		if at < 0 {
			at = len(reasons)
			reasons = append(reasons, &sharedReason{why: why})
		}
		r := reasons[at]
		r.times++
		if !slices.Contains(r.at, a.Addr) {
			r.at = append(r.at, a.Addr)
		}
	}
	return reasons
}

// addresses joins addresses for a message.
func addresses(all []string) string {
	if more := len(all) - maxAddresses; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxAddresses], ", "), more)
	}
	if last := len(all) - 1; last > 0 {
		return strings.Join(all[:last], ", ") + " and " + all[last]
	}
	return strings.Join(all, "")
}

// fit shortens the longest texts until all texts together have at most room bytes. Each keeps at
// least minReason bytes.
func fit(texts []string, room int) {
	const minReason = 24
	order := make([]int, len(texts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(texts[a]) - len(texts[b]) })
	for i, at := range order {
		texts[at] = text.Cut(texts[at], max(room/(len(order)-i), minReason))
		room -= len(texts[at])
	}
}

// Next returns the advice on the next step if it is the same for all attempts, or "" if it
// differs.
func (r *Record) Next() string {
	for i := range r.attempts {
		if r.attempts[i].ID != r.attempts[0].ID {
			return ""
		}
	}
	return catalogue.Of(r.attempts[0].ID).Next
}
