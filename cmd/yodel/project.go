// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"
)

// projectFile is the file with the fleet of a project.
const projectFile = "yodel.toml"

// A project is the content of a yodel.toml: a context, or the name of one.
type project struct {
	Context  string   `toml:"context"`
	Registry string   `toml:"registry"`
	At       []string `toml:"at"`
	TLS      bool     `toml:"tls"`
	CA       string   `toml:"ca"`
	Cert     string   `toml:"cert"`
	Key      string   `toml:"key"`
	Guarded  bool     `toml:"guarded"`
}

// loadProject reads the yodel.toml in the working directory or above it. Its paths are relative to
// its folder.
func loadProject() (p project, path string, err error) {
	dir, ok := above(projectFile, func(info os.FileInfo) bool { return info.Mode().IsRegular() })
	if !ok {
		return p, "", nil
	}
	path = filepath.Join(dir, projectFile)
	about, err := toml.DecodeFile(path, &p)
	if err != nil {
		return p, path, faultf(exitUsage, "%s cannot be read: %v", path, err)
	}
	keys := []string{"context", "registry", "at", "tls", "ca", "cert", "key", "guarded"}
	if wrong := about.Undecoded(); len(wrong) > 0 {
		f := faultf(exitUsage, "%s has the unknown key %q", path, wrong[0].String())
		if near := similar(wrong[0].String(), keys); near != "" {
			f.addf("did you mean", "%s", near)
		}
		return p, path, f.with("keys", "%s", strings.Join(keys, ", "))
	}
	if fleets := len(p.At); p.Registry != "" && (fleets > 0 || p.Context != "") || fleets > 0 && p.Context != "" {
		return p, path, faultf(exitUsage, "%s names more than one fleet: registry, at and context exclude each other", path)
	}
	absolute(dir, &p.Registry, &p.CA, &p.Cert, &p.Key)
	return p, path, nil
}

// above returns the working directory or the nearest one above it in which a path exists and is
// right.
func above(path string, right func(os.FileInfo) bool) (dir string, ok bool) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}
	for {
		if info, err := os.Stat(filepath.Join(dir, path)); err == nil && right(info) {
			return dir, true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false
		}
		dir = up
	}
}
