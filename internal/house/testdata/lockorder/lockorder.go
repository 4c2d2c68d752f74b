// SPDX-License-Identifier: Apache-2.0

// Package lockorder has mutexes that record which locks a goroutine holds when it takes another
// one. It stands in for package sync in the test build of internal/house.
package lockorder

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
)

// A Name names the lock of a field.
type Name interface{ LockName() string }

// A Mutex is a sync.Mutex that records.
type Mutex[N Name] struct {
	mutex sync.Mutex
	owner atomic.Int64
}

func (m *Mutex[N]) Lock() {
	id := taking[N]()
	m.mutex.Lock()
	m.owner.Store(id)
	hold[N](id)
}

func (m *Mutex[N]) TryLock() bool {
	if !m.mutex.TryLock() {
		return false
	}
	id := goroutine()
	m.owner.Store(id)
	hold[N](id)
	return true
}

func (m *Mutex[N]) Unlock() {
	release[N](m.owner.Load())
	m.mutex.Unlock()
}

// An RWMutex is a sync.RWMutex that records. Readers are recorded like writers.
type RWMutex[N Name] struct{ mutex sync.RWMutex }

func (m *RWMutex[N]) Lock()    { id := taking[N](); m.mutex.Lock(); hold[N](id) }
func (m *RWMutex[N]) RLock()   { id := taking[N](); m.mutex.RLock(); hold[N](id) }
func (m *RWMutex[N]) Unlock()  { release[N](goroutine()); m.mutex.Unlock() }
func (m *RWMutex[N]) RUnlock() { release[N](goroutine()); m.mutex.RUnlock() }

var (
	mu    sync.Mutex
	held  = make(map[int64][]string) // by goroutine
	known = make(map[[2]string]bool)
)

// goroutine returns the number of the running goroutine.
func goroutine() int64 {
	var b [40]byte
	words := bytes.Fields(b[:runtime.Stack(b[:], false)])
	id, err := strconv.ParseInt(string(words[1]), 10, 64)
	if err != nil {
		panic(err)
	}
	return id
}

func nameOf[N Name]() string { return (*new(N)).LockName() }

// taking records that the running goroutine takes a lock, and returns its number.
func taking[N Name]() int64 {
	id, name := goroutine(), nameOf[N]()
	mu.Lock()
	defer mu.Unlock()
	for _, other := range held[id] {
		if pair := [2]string{other, name}; !known[pair] {
			known[pair] = true
			_, file, line, _ := runtime.Caller(2)
			record(fmt.Sprintf("%s\t%s\t%s:%d\n", other, name, file, line))
		}
	}
	return id
}

func hold[N Name](id int64) {
	mu.Lock()
	defer mu.Unlock()
	held[id] = append(held[id], nameOf[N]())
}

func release[N Name](id int64) {
	name := nameOf[N]()
	mu.Lock()
	defer mu.Unlock()
	all := held[id]
	for i := len(all) - 1; i >= 0; i-- {
		if all[i] == name {
			held[id] = append(all[:i:i], all[i+1:]...)
			break
		}
	}
	if len(held[id]) == 0 {
		delete(held, id)
	}
}

func record(line string) {
	f, err := os.OpenFile(os.Getenv("YODEL_LOCK_ORDER"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := f.WriteString(line); err != nil {
		panic(err)
	}
}
