// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/rules"
)

// kept is the rules of all services, which are read at most once a second.
type kept struct {
	mu   sync.Mutex
	at   time.Time
	list []rules.Rule
	err  error
}

// get returns the rules. The caller must not change them.
func (k *kept) get(ctx context.Context, book *rules.Book) ([]rules.Rule, error) {
	k.mu.Lock()
	list, err, fresh := k.list, k.err, time.Since(k.at) < time.Second
	k.mu.Unlock()
	if fresh {
		return list, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	list, err = book.List(ctx, "")
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at, k.list, k.err = time.Now(), list, err
	return list, err
}

// forget makes the next get read the rules again.
func (k *kept) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at = time.Time{}
}
