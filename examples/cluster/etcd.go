// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// An etcdServer is etcd inside of this process, with its data in a temporary folder.
type etcdServer struct {
	*embed.Etcd

	addr   string // for clients
	folder string
}

// startEtcd starts etcd, and returns when it answers.
func startEtcd() (*etcdServer, error) {
	folder, err := os.MkdirTemp("", "yodel-cluster-")
	if err != nil {
		return nil, err
	}
	config := embed.NewConfig()
	config.Dir, config.LogLevel = folder, "panic" // it calls its own end an error; why it does not start is returned
	config.UnsafeNoFsync = true                   // nothing is to survive this program
	wal.SegmentSizeBytes = 1 << 20                //nolint:reassign // it is an option; its log begins with two such files, which stay when it is killed
	config.TickMs, config.ElectionMs = 10, 100    // there is nobody to elect but itself
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = free, free
	config.ListenPeerUrls, config.AdvertisePeerUrls = free, free
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start etcd: %w", err), os.RemoveAll(folder))
	}
	e := &etcdServer{Etcd: server, addr: server.Clients[0].Addr().String(), folder: folder}
	select {
	case <-server.Server.ReadyNotify():
		return e, nil
	case err = <-server.Err():
	case <-time.After(20 * time.Second):
		err = errors.New("it does not get ready")
	}
	e.stop()
	return nil, fmt.Errorf("start etcd: %w", err)
}

func (e *etcdServer) port() string {
	_, port, _ := net.SplitHostPort(e.addr) // a listener's address has one
	return port
}

func (e *etcdServer) stop() {
	e.Close()
	_ = os.RemoveAll(e.folder) // it is a temporary one
}
