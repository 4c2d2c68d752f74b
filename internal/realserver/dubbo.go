// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Dubbo starts a program that uses dubbo-java: a provider or a consumer of com.acme.Greeter. Args
// are those of com.acme.Peer. The first call downloads dubbo-java.
func Dubbo(t testing.TB, args ...string) *Peer {
	t.Helper()
	wantedForeign(t, "dubbo-java")
	found, err := findDubbo()
	if err != nil {
		missing(t, "dubbo-java", "apt-get install --no-install-recommends default-jdk-headless maven", err)
	}
	folder := t.TempDir()
	hosts := filepath.Join(folder, "hosts")
	if err = os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Dubbo replaces addresses of loopback by another one of this host, unless it finds none.
	java := []string{
		"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Ddubbo.network.interface.ignored=.*", "-Djdk.net.hosts.file=" + hosts,
		"-Duser.home=" + folder, "-cp", fmt.Sprintf("%[1]s/classes:%[1]s/lib/*", found), "com.acme.Peer",
	}
	return StartPeer(t, exec.Command("java", append(java, args...)...))
}

// findDubbo returns the folder with dubbo-java and the program.
func findDubbo() (string, error) {
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", err
		}
	}
	return Made("dubbo", "complete", func(source, folder string) error {
		lib, classes := filepath.Join(folder, "lib"), filepath.Join(folder, "classes")
		mvn := exec.Command("mvn", "-q", "-B", "-f", filepath.Join(source, "pom.xml"),
			"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DoutputDirectory="+lib)
		if err := run(mvn); err != nil {
			return err
		}
		sources, err := filepath.Glob(filepath.Join(source, "*.java"))
		if err != nil {
			return err
		}
		if err = run(exec.Command("javac", append([]string{"-nowarn", "-d", classes, "-cp", filepath.Join(lib, "*")}, sources...)...)); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(folder, "complete"), nil, 0o600)
	})
}

// DubboGo starts a program that uses dubbo-go. Args are those of the program in testdata/dubbogo,
// which the first call builds.
func DubboGo(t testing.TB, args ...string) *Peer {
	t.Helper()
	return StartPeer(t, exec.Command(Tool(t, "dubbogo", "."), args...))
}
