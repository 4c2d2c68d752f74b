// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// zookeeperJar is the path of the ZooKeeper library on Debian. Its manifest names the libraries
// that it needs.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

// ZooKeeper starts a ZooKeeper server whose sessions last from 1 s to 40 s.
func ZooKeeper(t testing.TB) *Server {
	t.Helper()
	return Start(t, Program{
		Name:    "ZooKeeper",
		Install: "apt-get install --no-install-recommends default-jre-headless libzookeeper-java",
		Find: func() (string, error) {
			if _, err := os.Stat(zookeeperJar); err != nil {
				return "", err
			}
			return exec.LookPath("java")
		},
		Command: zookeeperCommand,
		// The probe is srvr, because ZooKeeper answers ruok before it serves.
		Probe: func(ctx context.Context, addr string) error { return Ask(ctx, addr, "srvr", "Zookeeper version") },
	})
}

func zookeeperCommand(java, addr, folder string) (*exec.Cmd, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf("tickTime=500\nmaxSessionTimeout=40000\nclientPort=%s\nclientPortAddress=%s\ndataDir=%s\nmaxClientCnxns=0\n"+
		"admin.enableServer=false\n4lw.commands.whitelist=*\n", port, host, filepath.Join(folder, "store"))
	file := filepath.Join(folder, "zoo.cfg")
	if err = os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return exec.Command(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", zookeeperJar,
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", file), nil
}
