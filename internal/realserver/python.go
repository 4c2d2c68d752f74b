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
	"strings"
	"testing"
)

// Python returns the path of a Python interpreter, and a value for PYTHONPATH with which the
// interpreter finds the packages. A package has the form "name==version". All dependencies must be
// listed too. Python installs the packages once, into the user's cache.
func Python(t testing.TB, packages ...string) (python, path string) {
	t.Helper()
	wantedForeign(t, "Python with "+strings.Join(packages, ", "))
	python, err := exec.LookPath("python3")
	if err == nil {
		path, err = installed(python, packages)
	}
	if err != nil {
		missing(t, "Python with "+strings.Join(packages, ", "), "apt-get install --no-install-recommends python3-pip", err)
	}
	return python, path
}

// installed returns the folder that contains the packages.
func installed(python string, packages []string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	version, err := exec.Command(python, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", python, err)
	}
	sum := sha256.Sum256(fmt.Appendln(version, packages))
	folder := filepath.Join(cache, "yodel-real", "python-"+hex.EncodeToString(sum[:6]))
	if _, err = os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		return folder, err
	}
	if err = os.MkdirAll(filepath.Dir(folder), 0o750); err != nil {
		return "", err
	}
	// Two test processes may install at the same time. Each of them moves a whole folder into
	// place.
	unfinished, err := os.MkdirTemp(filepath.Dir(folder), "unfinished")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(unfinished)
	args := append([]string{"-m", "pip", "install", "--quiet", "--no-deps", "--target", unfinished}, packages...)
	if output, err := exec.Command(python, args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("pip install: %w\n%s", err, output)
	}
	if err = os.Rename(unfinished, folder); errors.Is(err, fs.ErrExist) {
		err = nil // the other process was faster
	}
	return folder, err
}
