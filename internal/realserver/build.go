// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Built returns the path of a server that Go builds: the program pkg ("." or an import path) of the module testdata/NAME. It is built
// once for each version of the module and of Go, and kept in the user's cache. The modules are in testdata because they
// are no part of the workspace: their requirements would reach every other module, and some replace modules.
func Built(name, pkg string) (string, error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(here) {
		return "", fmt.Errorf("%s is built from source, and this program does not know where that is: it was built with -trimpath", name)
	}
	source := filepath.Join(filepath.Dir(here), "testdata", name)
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	version, err := fingerprint(source)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cache, "yodel-real", name+"-"+version)
	binary := filepath.Join(folder, name)
	if _, err = os.Stat(binary); !errors.Is(err, fs.ErrNotExist) {
		return binary, err
	}
	if err = os.MkdirAll(folder, 0o750); err != nil {
		return "", err
	}
	// Two test processes may build at once: each moves a whole file into place.
	unfinished, err := os.MkdirTemp(folder, "unfinished")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(unfinished)
	made := filepath.Join(unfinished, name)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", made, pkg)
	cmd.Dir, cmd.Env = source, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, output)
	}
	return binary, os.Rename(made, binary)
}

// fingerprint names the version of a module and of the Go that builds it.
func fingerprint(source string) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, runtime.Version())
	entries, err := os.ReadDir(source)
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(source, entry.Name()))
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(h, "%s %d %s\n", entry.Name(), len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}
