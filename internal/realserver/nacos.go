// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A NacosServer is a Nacos server.
type NacosServer struct {
	*Server
	// GRPC is the address to which clients with Nacos's SDK connect.
	GRPC string
}

// DubboURL returns the URL of the registry for the program of Dubbo.
func (s *NacosServer) DubboURL() string { return "nacos://" + s.Addr + "?grpc=" + s.GRPC }

// Nacos starts a Nacos server with settings like "nacos.core.auth.enabled=true". The first call
// downloads the program. Nacos listens on all interfaces, so it runs in its own network namespace,
// in which no other process runs.
func Nacos(t testing.TB, settings ...string) *NacosServer {
	t.Helper()
	folder, err := os.MkdirTemp("", "nacos") //nolint:usetesting // the path of a socket must be short, that of a test's own folder is not
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	socket := filepath.Join(folder, "socket")
	reach, grpc := Between(t, socket), Between(t, socket+".grpc")
	s := Start(t, Program{
		Name:    "Nacos",
		Install: "apt-get install --no-install-recommends default-jdk-headless maven iproute2; and Linux has to allow network namespaces",
		Find:    findNacos,
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			// Nacos ends if the creation of its database takes too long. It then neither repairs
			// nor recreates that database.
			database := filepath.Join(folder, "data", "derby-data")
			if _, err = os.Stat(filepath.Join(database, "service.properties")); err != nil {
				if err = os.RemoveAll(database); err != nil {
					return nil, err
				}
			}
			// the temporary folder of Nacos, Tomcat and RocksDB, which leave files there when they
			// are killed
			temporary := filepath.Join(folder, "tmp")
			if err = errors.Join(os.RemoveAll(temporary), os.Mkdir(temporary, 0o700)); err != nil {
				return nil, err
			}
			// The process that enters the namespace becomes Java.
			args := []string{
				"--net", "--map-root-user", "sh", "-c", `ip link set lo up && exec java "$@"`, "sh",
				"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.io.tmpdir=" + temporary,
				"--add-opens", "java.base/java.lang=ALL-UNNAMED", "--add-opens", "java.base/java.util=ALL-UNNAMED",
				// Nacos waits 3 s for its database by default, and ends if creating it
				// takes longer.
				"-Ddb.pool.config.connectionTimeout=60000",
				"-Dnacos.standalone=true", "-Dnacos.home=" + folder, "-Dnacos.server.main.port=" + port,
			}
			for _, setting := range settings {
				args = append(args, "-D"+setting)
			}
			// Two libraries contain the same classes. Nacos needs the library that comes first
			// here.
			args = append(args, "-cp", fmt.Sprintf("%[1]s/classes:%[1]s/lib/hessian-4.0.63.jar:%[1]s/lib/*", found), "Launcher", port, socket)
			return exec.Command("unshare", args...), nil
		},
		Probe: func(ctx context.Context, _ string) error {
			return Get(ctx, "http://"+reach.Addr+"/nacos/v3/admin/core/state")
		},
		Within: 2 * time.Minute,
	})
	s.Addr = reach.Addr
	return &NacosServer{s, grpc.Addr}
}

// findNacos returns the folder with the libraries of Nacos and its launcher.
func findNacos() (string, error) {
	for _, tool := range []string{"java", "javac", "mvn", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", err
		}
	}
	if err := run(exec.Command("unshare", "--net", "--map-root-user", "ip", "link", "set", "lo", "up")); err != nil {
		return "", err
	}
	return Made("nacos", "classes/Launcher.class", func(source, folder string) error {
		lib, classes := filepath.Join(folder, "lib"), filepath.Join(folder, "classes")
		mvn := exec.Command("mvn", "-q", "-B", "-f", filepath.Join(source, "pom.xml"),
			"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DoutputDirectory="+lib)
		if err := run(mvn); err != nil {
			return err
		}
		if err := os.CopyFS(classes, os.DirFS(source)); err != nil { // for its settings
			return err
		}
		return run(exec.Command("javac", "-nowarn", "-d", classes, "-cp", filepath.Join(lib, "*"), filepath.Join(source, "Launcher.java")))
	})
}
