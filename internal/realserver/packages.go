// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Java returns the path of java, and a class path with what testdata/NAME/pom.xml lists. Maven
// downloads it once, into the user's cache.
func Java(t testing.TB, name string) (java, classes string) {
	t.Helper()
	wantedForeign(t, "Java with "+name)
	java, err := exec.LookPath("java")
	folder := ""
	if err == nil {
		folder, err = Made(name, "complete", func(source, folder string) error {
			mvn := exec.Command("mvn", "-q", "-B", "-f", filepath.Join(source, "pom.xml"),
				"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DoutputDirectory="+folder)
			if err := run(mvn); err != nil {
				return err
			}
			return complete(folder)
		})
	}
	if err != nil {
		missing(t, "Java with "+name, "apt-get install --no-install-recommends default-jdk-headless maven", err)
	}
	return java, filepath.Join(folder, "*")
}

// Node returns the path of node, and a value for NODE_PATH with which node finds the packages that
// testdata/NAME/package-lock.json lists. Npm installs them once, into the user's cache.
func Node(t testing.TB, name string) (node, path string) {
	t.Helper()
	wantedForeign(t, "Node.js with "+name)
	node, err := exec.LookPath("node")
	folder := ""
	if err == nil {
		folder, err = Made(name, "complete", func(source, folder string) error {
			if err := os.CopyFS(folder, os.DirFS(source)); err != nil {
				return err
			}
			npm := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
			npm.Dir = folder
			if err := run(npm); err != nil {
				return err
			}
			return complete(folder)
		})
	}
	if err != nil {
		missing(t, "Node.js with "+name, "apt-get install --no-install-recommends nodejs npm", err)
	}
	return node, filepath.Join(folder, "node_modules")
}

// complete writes the file that says that a folder is complete.
func complete(folder string) error {
	return os.WriteFile(filepath.Join(folder, "complete"), nil, 0o600)
}

// Chromium returns the path of the browser.
func Chromium(t testing.TB) string {
	t.Helper()
	wanted(t, "Chromium")
	path, err := exec.LookPath("chromium")
	if err != nil {
		missing(t, "Chromium", "apt-get install --no-install-recommends chromium", err)
	}
	return path
}
