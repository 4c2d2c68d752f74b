// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"maps"
	"os"
	"slices"
	"testing"
)

// TestProgramsAreMade builds or downloads the programs that tests start, two at a time, and keeps
// them in the user's cache. It runs before all other tests, which then wait for no build: make
// servers.
func TestProgramsAreMade(t *testing.T) { //nolint:tparallel // other tests wait for it
	goProgram := func(pkg string) func(*testing.T, string) {
		return func(t *testing.T, name string) { Tool(t, name, pkg) }
	}
	large := func(pkg string) func(*testing.T, string) {
		return func(t *testing.T, name string) { wantedLarge(t, name); Tool(t, name, pkg) }
	}
	foreign := func(find func() (string, error)) func(*testing.T, string) {
		return func(t *testing.T, name string) {
			wantedForeign(t, name)
			if _, err := find(); err != nil {
				t.Error(err)
			}
		}
	}
	programs := map[string]func(t *testing.T, name string){
		"connectconformance": goProgram("connectrpc.com/conformance/cmd/connectconformance"),
		"consul":             large("github.com/hashicorp/consul"),
		"dubbo":              foreign(findDubbo),
		"dubbogo":            goProgram("."),
		"etcd":               goProgram("."),
		"etcdctl":            goProgram("go.etcd.io/etcd/etcdctl/v3"),
		"ghz":                goProgram("github.com/bojand/ghz/cmd/ghz"),
		"grpc-java":          func(t *testing.T, name string) { Java(t, name) },
		"grpc-node":          func(t *testing.T, name string) { Node(t, name) },
		"grpcurl":            goProgram("github.com/fullstorydev/grpcurl/cmd/grpcurl"),
		"h2spec":             goProgram("github.com/summerwind/h2spec/cmd/h2spec"),
		"kube-apiserver":     large("."),
		"nacos": func(t *testing.T, name string) {
			wanted(t, name)
			if _, err := findNacos(); err != nil {
				t.Error(err)
			}
		},
		"openapi": goProgram("."),
		"rpcx":    goProgram("."),
		"thrift":  foreign(madeThrift),
	}
	folders, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		if programs[folder.Name()] == nil {
			t.Errorf("testdata/%s is made during another test", folder.Name())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			programs[name](t, name)
		})
	}
}
