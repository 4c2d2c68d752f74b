// SPDX-License-Identifier: Apache-2.0

package main

import (
	"embed"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// starter is the project that yodel new writes. It is a part of this module, so that it is compiled
// and tested with everything else.
//
//go:embed starter
var starter embed.FS

// starterPath is the import path of the project's packages in this repository.
const starterPath = "github.com/yodel-rpc/yodel/cmd/yodel/starter"

// starterComment is for the test that runs the commands of the README.
const starterComment = "<!-- background: 127.0.0.1:8972 -->\n"

// starterMetrics is the folder of the module whose requirements the project has.
const starterMetrics = "metrics/prometheus"

// newOptions are the flags of new.
type newOptions struct {
	clone string
}

func (a *app) newCommand() *cobra.Command {
	var o newOptions
	c := command(local, &cobra.Command{
		Use:   "new NAME",
		Short: "Write a project: a service with a client, a test, metrics, a registry and a Dockerfile",
		Long: "NAME is the name of the service or the path of a module, such as shop or example.com/team/shop.\n" +
			"The project is a new folder with the last element of NAME. A folder that is not empty is refused.\n" +
			"Until a version of yodel is tagged, the go.mod of the project replaces yodel's modules by those of a clone.",
		Example: "  yodel new shop\n  yodel new example.com/team/shop --yodel ../yodel",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return a.newProject(args[0], &o) },
	})
	c.Flags().StringVar(&o.clone, "yodel", "", "`PATH` of a clone of yodel (default: the one that this command was built from)")
	return c
}

// newProject writes the project for a module into a new folder.
func (a *app) newProject(module string, o *newOptions) error {
	if why := wrongModule(module); why != "" {
		return faultf(exitUsage, "%q cannot be the name of a project: %s", module, why).with("example", "yodel new shop")
	}
	clone, err := yodelClone(o.clone)
	if err != nil {
		return err
	}
	goMod, goSum, err := requirements(module, clone)
	if err != nil {
		return err
	}
	name := path.Base(module)
	if err := makeEmpty(name); err != nil {
		return err
	}
	files := map[string]string{"go.mod": goMod, "go.sum": goSum}
	err = fs.WalkDir(starter, "starter", func(from string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := starter.ReadFile(from)
		if err == nil {
			files[starterFile(from)], err = starterText(from, string(text), module)
		}
		return err
	})
	for file, text := range files {
		err = errors.Join(err, writeStarterFile(filepath.Join(name, filepath.FromSlash(file)), text))
	}
	if err != nil {
		return err
	}
	a.sayf("The folder %s has a new project of %d files. Its README.md says how to run it.\n", name, len(files))
	a.sayf("  %-14s %s\n", "next", "cd "+name+" && go test ./...")
	return nil
}

// An element of the path of a module. The last one is the name of a folder and of a service.
var (
	moduleElement = regexp.MustCompile(`^[a-z0-9][a-z0-9._~-]*$`)
	serviceName   = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
)

// reserved are the first elements that the command go does not take as modules of users, or as
// folders of packages.
var reserved = []string{"all", "builtin", "cmd", "internal", "main", "std", "testdata", "tool", "unsafe", "vendor", "work"}

// wrongModule returns why a text cannot be the module path of a project, or "".
func wrongModule(module string) string {
	elements := strings.Split(module, "/")
	last := elements[len(elements)-1]
	for _, element := range elements {
		if !moduleElement.MatchString(element) || strings.HasSuffix(element, ".") {
			return "an element of a module path has lower-case letters, digits and the signs . _ ~ -, and begins with a letter or a digit"
		}
		if slices.Contains(reserved, element) {
			return fmt.Sprintf("the command go reserves the element %q", element)
		}
	}
	switch {
	case !serviceName.MatchString(last):
		return "the last element is the name of the service: lower-case letters, digits and the signs _ -, and a letter first"
	case len(module) > 200:
		return "it has more than 200 bytes"
	}
	return ""
}

// makeEmpty makes the folder of a project. It may exist if it is empty.
func makeEmpty(folder string) error {
	err := os.Mkdir(folder, 0o755) //nolint:gosec // a project is not secret
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return err
	}
	entries, err := os.ReadDir(folder)
	switch {
	case err != nil:
		return faultf(exitFailed, "%s exists and is not a folder", folder)
	case len(entries) > 0:
		return faultf(exitFailed, "the folder %s is not empty", folder).with("next", "choose another name, or remove the folder")
	}
	return nil
}

// starterFile returns the name of a file of the starter in a project.
func starterFile(from string) string {
	name := strings.TrimPrefix(from, "starter/")
	if name == "gitignore" || name == "dockerignore" { // embed leaves out names with a dot
		return "." + name
	}
	return name
}

// starterText returns the text of a file of the starter in the project of a module. The order of
// imports depends on the path of the module.
func starterText(from, text, module string) (string, error) {
	text = strings.TrimPrefix(text, "// SPDX-License-Identifier: Apache-2.0\n\n")
	text = strings.NewReplacer(starterPath, module, "starter", path.Base(module)).Replace(text)
	if path.Ext(from) != ".go" {
		return strings.ReplaceAll(text, starterComment, ""), nil
	}
	formatted, err := format.Source([]byte(text))
	return string(formatted), err
}

func writeStarterFile(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // a project is not secret
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644) //nolint:gosec // as above
}

// yodelClone returns the absolute path of a clone of yodel: the given one, or the one that this
// program was built from.
func yodelClone(given string) (string, error) {
	clone := given
	if clone == "" {
		_, file, _, _ := runtime.Caller(0) // cmd/yodel/new.go
		clone = filepath.Dir(filepath.Dir(filepath.Dir(file)))
	}
	if _, err := os.Stat(filepath.Join(clone, "go.work")); err != nil || !filepath.IsAbs(clone) && given == "" {
		said := "the clone of yodel that this command was built from is not there"
		if given != "" {
			said = fmt.Sprintf("%s is not a clone of yodel", given)
		}
		return "", faultf(exitUsage, "%s", said).with("next", "git clone https://github.com/yodel-rpc/yodel, and yodel new NAME --yodel PATH")
	}
	return filepath.Abs(clone)
}

// requirements returns the go.mod and the go.sum of a project that takes the modules of yodel from
// a clone. It requires the module with the metrics, and what that module requires.
func requirements(module, clone string) (goMod, goSum string, err error) {
	files := os.DirFS(clone)
	metrics, err := fs.ReadFile(files, path.Join(starterMetrics, "go.mod"))
	if err != nil {
		return "", "", err
	}
	sum, err := fs.ReadFile(files, path.Join(starterMetrics, "go.sum"))
	if err != nil {
		return "", "", err
	}
	workspace, err := fs.ReadFile(files, "go.work")
	if err != nil {
		return "", "", err
	}
	const root = "github.com/yodel-rpc/yodel"
	_, body, found := strings.Cut(string(metrics), "\n") // after the line with the module's own path
	if !found {
		return "", "", fmt.Errorf("the go.mod of %s has one line", starterMetrics)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "module %s\n%s\nrequire %s/%s v0.0.0\n", module, body, root, starterMetrics)
	b.WriteString("\n// No version of yodel is tagged yet: its modules come from a clone.\nreplace (\n")
	for line := range strings.Lines(string(workspace)) {
		folder, isUse := strings.CutPrefix(strings.TrimSpace(line), "use ")
		if !isUse || strings.Contains(folder, "/internal/") || strings.HasPrefix(folder, "./examples") || strings.HasPrefix(folder, "./cmd") {
			continue
		}
		fmt.Fprintf(&b, "\t%s => %s\n", path.Join(root, folder), quotedPath(filepath.Join(clone, filepath.FromSlash(folder))))
	}
	b.WriteString(")\n")
	return b.String(), string(sum), nil
}

// quotedPath quotes a path for a go.mod if it has to be quoted.
func quotedPath(name string) string {
	if strings.ContainsAny(name, " \t\"'`()[]{},") || strings.Contains(name, "//") {
		return strconv.Quote(name)
	}
	return name
}
