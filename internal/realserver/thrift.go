// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// ThriftPackage is the Python package of Apache Thrift, for Python.
const ThriftPackage = "thrift==0.25.0"

// Thrift returns a folder with the programs of Apache Thrift's cross test, which are compiled from
// Apache's sources:
//
//	py/TestClient.py   the client for Python; needs ThriftPackage
//	py/serve.py        the server for Python, on loopback; needs ThriftPackage
//	classes, lib       Java classes: org.apache.thrift.test.TestClient, and Servers, with many servers
//	keys               certificates and keys, as PEM files and as Java's key stores
//
// The first call compiles them, which takes some minutes.
func Thrift(t testing.TB) (folder string) {
	t.Helper()
	wantedForeign(t, "Apache Thrift's cross test")
	folder, err := madeThrift()
	if err != nil {
		missing(t, "Apache Thrift's cross test", "apt-get install --no-install-recommends bison flex g++ default-jdk-headless maven", err)
	}
	return folder
}

func madeThrift() (string, error) {
	for _, tool := range []string{"bison", "flex", "g++", "java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", err
		}
	}
	return Made("thrift", "classes/Servers.class", func(source, folder string) error {
		apache, err := apacheThrift(source)
		if err != nil {
			return err
		}
		compiler, err := thriftCompiler(apache, folder)
		if err != nil {
			return err
		}
		if err = thriftPython(source, apache, compiler, folder); err != nil {
			return err
		}
		return thriftJava(source, apache, compiler, folder)
	})
}

// apacheThrift returns the folder with the sources of Apache Thrift, which the Go module contains.
func apacheThrift(source string) (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", "github.com/apache/thrift")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	output, err := cmd.Output()
	var module struct{ Dir, Error string }
	if decoding := json.Unmarshal(output, &module); decoding != nil || err != nil || module.Dir == "" {
		return "", fmt.Errorf("go mod download: %w, %s", err, output)
	}
	return module.Dir, nil
}

// thriftCompiler compiles the compiler for the languages of the cross test.
func thriftCompiler(apache, folder string) (string, error) {
	from, generated := filepath.Join(apache, "compiler/cpp/src"), filepath.Join(folder, "compiler")
	if err := os.MkdirAll(filepath.Join(generated, "thrift"), 0o750); err != nil {
		return "", err
	}
	scanner, parser := filepath.Join(generated, "thrift/thriftl.cc"), filepath.Join(generated, "thrift/thrifty.cc")
	if err := run(exec.Command("bison", "-d", "-o", parser, filepath.Join(from, "thrift/thrifty.yy"))); err != nil {
		return "", err
	}
	if err := run(exec.Command("flex", "-o", scanner, filepath.Join(from, "thrift/thriftl.ll"))); err != nil {
		return "", err
	}
	program := filepath.Join(folder, "thrift")
	args := []string{"-std=c++17", "-O0", "-w", "-I", generated, "-I", from, "-o", program, scanner, parser}
	for _, name := range []string{
		"common.cc", "main.cc", "audit/t_audit.cpp", "parse/t_typedef.cc", "parse/parse.cc",
		"generate/t_generator.cc", "generate/validator_parser.cc", "generate/go_validator_generator.cc",
		"generate/t_go_generator.cc", "generate/t_java_generator.cc", "generate/t_py_generator.cc",
	} {
		args = append(args, filepath.Join(from, "thrift", name))
	}
	return program, run(exec.Command("g++", args...))
}

// thriftPython makes the folder of the programs for Python, and that of the keys beside it, where
// they search for it.
func thriftPython(source, apache, compiler, folder string) error {
	py := filepath.Join(folder, "py")
	if err := os.CopyFS(filepath.Join(folder, "keys"), os.DirFS(filepath.Join(apache, "test/keys"))); err != nil {
		return err
	}
	if err := os.MkdirAll(py, 0o750); err != nil {
		return err
	}
	for _, path := range []string{
		filepath.Join(apache, "test/py/TestClient.py"), filepath.Join(apache, "test/py/TestServer.py"), filepath.Join(apache, "test/py/util.py"),
		filepath.Join(source, "serve.py"),
	} {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err = os.WriteFile(filepath.Join(py, filepath.Base(path)), text, 0o600); err != nil {
			return err
		}
	}
	return run(exec.Command(compiler, "--gen", "py", "-out", py, filepath.Join(apache, "test/ThriftTest.thrift")))
}

// thriftJava compiles the programs for Java.
func thriftJava(source, apache, compiler, folder string) error {
	tests := filepath.Join(apache, "lib/java/src")
	if err := os.CopyFS(filepath.Join(folder, "keys/java"), os.DirFS(filepath.Join(tests, "crossTest/resources"))); err != nil {
		return err
	}
	generated, lib, classes := filepath.Join(folder, "java"), filepath.Join(folder, "lib"), filepath.Join(folder, "classes")
	if err := os.MkdirAll(generated, 0o750); err != nil {
		return err
	}
	idl := filepath.Join(apache, "test/ThriftTest.thrift")
	if err := run(exec.Command(compiler, "--gen", "java:generated_annotations=suppress", "-out", generated, idl)); err != nil {
		return err
	}
	mvn := exec.Command("mvn", "-q", "-B", "-f", filepath.Join(source, "pom.xml"),
		"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DoutputDirectory="+lib)
	if err := run(mvn); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(generated, "thrift/test/*.java"))
	if err != nil {
		return err
	}
	files = append(files, filepath.Join(tests, "crossTest/java/org/apache/thrift/test/TestClient.java"),
		filepath.Join(tests, "test/java/org/apache/thrift/server/ServerTestBase.java"), filepath.Join(source, "Servers.java"))
	return run(exec.Command("javac", append([]string{"-nowarn", "-d", classes, "-cp", filepath.Join(lib, "*")}, files...)...))
}
