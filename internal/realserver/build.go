// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// buildFlags are those of Built.
var buildFlags = []string{"-trimpath", "-buildvcs=false", "-gcflags=all=-l", "-ldflags=-s -w"}

// Built returns the path of a server that Go builds: the program pkg ("." or an import path) of the
// module testdata/NAME. The modules are in testdata so that they are not part of the workspace. In
// the workspace, their requirements would apply to every other module, and some of them replace
// modules. They are built without inlining, which takes a third less of the processor.
func Built(name, pkg string) (string, error) {
	folder, err := Made(name, name, func(source, folder string) error {
		cmd := exec.Command("go", slices.Concat([]string{"build"}, buildFlags, []string{"-o", filepath.Join(folder, name), pkg})...)
		cmd.Dir, cmd.Env = source, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
		return run(cmd)
	})
	return filepath.Join(folder, name), err
}

// Tool is Built for a program that a test runs. It skips the test unless YODEL_REAL is set.
func Tool(t testing.TB, name, pkg string) string {
	t.Helper()
	wanted(t, name)
	path, err := Built(name, pkg)
	if err != nil {
		missing(t, name, "nothing: Go builds it, and needs its modules for that", err)
	}
	return path
}

// Made returns a folder with the files that fill makes from testdata/NAME. Fill must write the file
// named last after all other files: if that file exists, the folder is complete. Made calls fill
// once for each version of testdata/NAME and of Go, and keeps the folder in the user's cache.
func Made(name, last string, fill func(source, folder string) error) (string, error) {
	source, folder, err := folders(name)
	if err != nil {
		return "", err
	}
	complete := func() bool { _, err := os.Stat(filepath.Join(folder, last)); return err == nil }
	if complete() {
		return folder, nil
	}
	if err = os.MkdirAll(filepath.Dir(folder), 0o750); err != nil {
		return "", err
	}
	// Two test processes may build at the same time. Each of them moves a whole folder into place,
	// and the first folder is kept.
	unfinished, err := os.MkdirTemp(filepath.Dir(folder), "unfinished")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(unfinished)
	if err = fill(source, unfinished); err != nil {
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	if err = os.Rename(unfinished, folder); err != nil && !complete() {
		return "", err
	}
	return folder, nil
}

// isBuilt reports whether Built has built the program NAME of testdata/NAME before.
func isBuilt(name string) bool {
	_, folder, err := folders(name)
	if err != nil {
		return false // Built says why
	}
	_, err = os.Stat(filepath.Join(folder, name))
	return err == nil
}

// folders returns testdata/NAME, and the folder in the user's cache for what Made makes from it.
func folders(name string) (source, made string, err error) {
	source, err = sourceOf(name)
	if err != nil {
		return "", "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	version, err := fingerprint(source)
	if err != nil {
		return "", "", err
	}
	return source, filepath.Join(cache, "yodel-real", name+"-"+version), nil
}

// started is the working directory when the program began. A test may change it.
var started, _ = os.Getwd()

// sourceOf returns testdata/NAME. A program that was built with -trimpath finds it above the folder
// in which it was started: go test starts tests in the folder of their package.
func sourceOf(name string) (string, error) {
	if _, file, _, _ := runtime.Caller(0); filepath.IsAbs(file) {
		return filepath.Join(filepath.Dir(file), "testdata", name), nil
	}
	for folder, below := started, ""; folder != below; below, folder = folder, filepath.Dir(folder) {
		source := filepath.Join(folder, "internal", "realserver", "testdata", name)
		if _, err := os.Stat(source); err == nil {
			return source, nil
		}
	}
	return "", fmt.Errorf("%s is built from source, and its source is not above %s", name, started)
}

// run runs a command. If the command fails, the error contains its output.
func run(cmd *exec.Cmd) error {
	EndWithParent(cmd)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, output)
	}
	return nil
}

// fingerprint returns a name for the version of a module together with the version of Go that
// builds it.
func fingerprint(source string) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, runtime.Version(), buildFlags)
	files := os.DirFS(source)
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, name)
		_, _ = fmt.Fprintf(h, "%s %d %s\n", name, len(text), text)
		return err
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}
