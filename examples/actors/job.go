// SPDX-License-Identifier: Apache-2.0

package main

import (
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"strconv"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
)

// A job counts words. Each map task counts the words of one part of the text, and divides the
// counts among the reduce tasks.
type job struct{ Maps, Reduces, Words int }

// region messages
// These are the messages. A Ref in a message works wherever it arrives.
type (
	// Register is what an executor sends to the driver.
	Register struct{ Executor, Shuffle actor.Ref }
	// RunMap asks an executor for a map task.
	RunMap struct {
		Task int
		Job  job
	}
	// RunReduce asks an executor for a reduce task. Outputs has the shuffle actor of each map task.
	RunReduce struct {
		Task    int
		Outputs []actor.Ref
	}
	// Ran is the answer to both.
	Ran struct {
		Counts map[string]int
		Maps   []int  // the map tasks that Counts has, of a reduce task
		Lost   string // the address of an executor that has not answered
	}
	// Put gives the output of a map task to the shuffle actor, Fetch asks for a part of it.
	Put struct {
		Map   int
		Parts []map[string]int
	}
	Fetch  struct{ Map, Reduce int }
	Counts struct{ Counts map[string]int }
)

// endregion messages

// count counts the words of a part of the text, for each reduce task. A word always goes to the
// same one.
func (j job) count(part int) []map[string]int {
	counts := make([]map[string]int, j.Reduces)
	for i := range counts {
		counts[i] = make(map[string]int)
	}
	random := rand.New(rand.NewPCG(1, uint64(part))) // the same text each time
	zipf := rand.NewZipf(random, 1.1, 4, 5000)
	for range j.Words {
		word := "w" + strconv.FormatUint(zipf.Uint64(), 36)
		h := fnv.New32a()
		_, _ = h.Write([]byte(word)) // never fails
		counts[int(h.Sum32())%j.Reduces][word]++
	}
	return counts
}

// quiet, quietServer and quietClient leave out of the output that a process has ended.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func quietServer() *yodel.ServerOptions { return &yodel.ServerOptions{Logger: quiet()} }

func quietClient() *yodel.ClientOptions { return &yodel.ClientOptions{Logger: quiet()} }
