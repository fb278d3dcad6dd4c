// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package collateral

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// BuildInfo describes how a program was built, in the format of Istio's programs.
type BuildInfo struct {
	Version       string `json:"version"`
	GitRevision   string `json:"revision"`
	GolangVersion string `json:"golang_version"`
	BuildStatus   string `json:"status"`
	GitTag        string `json:"tag"`
}

// format is the value of the flag -o.
type format string

// add adds the flag.
func (f *format) add(cmd *cobra.Command) {
	cmd.Flags().VarP(f, "output", "o", "yaml or json")
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"yaml", "json"}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag exists, and has no other completion
	}
}

func (f *format) String() string { return string(*f) }

// Type returns the name of the type in the help.
func (f *format) Type() string { return "string" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	if text != "yaml" && text != "json" {
		return errors.New("it must be yaml or json")
	}
	*f = format(text)
	return nil
}

// AddBuildVersion adds the command that prints the version of a program that replaces one of Istio's,
// as that one does, and the flag --version for its short form. The flag has no letter: -v is unknown to
// Istio's programs.
func AddBuildVersion(root *cobra.Command, version string) {
	root.AddCommand(newBuildVersion(root.Name(), version))
	flag := root.Flags().Bool("version", false, "print the version only")
	root.RunE = func(cmd *cobra.Command, _ []string) error { // a template of cobra would link text/template
		if !*flag {
			return cmd.Help()
		}
		_, err := io.WriteString(cmd.OutOrStdout(), shortVersion(version))
		return err
	}
}

// shortVersion returns the output of version -s.
func shortVersion(version string) string { return "client version: " + version + "\n" }

func newBuildVersion(program, version string) *cobra.Command {
	var short bool
	var output format
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Args:    cobra.NoArgs,
		Example: "  " + program + " version\n  " + program + " version -s\n  " + program + " version -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printVersion(cmd.OutOrStdout(), ThisBuild(version), short, output)
		},
	}
	cmd.Flags().BoolVarP(&short, "short", "s", false, "print the version only")
	output.add(cmd)
	return cmd
}

func printVersion(w io.Writer, info BuildInfo, short bool, output format) error {
	var out string
	switch {
	case output == "json":
		doc, err := json.MarshalIndent(map[string]BuildInfo{"clientVersion": info}, "", "  ")
		if err != nil {
			return err
		}
		out = string(doc) + "\n"
	case output == "yaml":
		out = fmt.Sprintf("clientVersion:\n  golang_version: %s\n  revision: %s\n  status: %s\n  tag: %s\n  version: %s\n\n",
			yamlText(info.GolangVersion), yamlText(info.GitRevision), yamlText(info.BuildStatus), yamlText(info.GitTag), yamlText(info.Version))
	case short:
		out = shortVersion(info.Version)
	default:
		out = "client version: " + info.Long() + "\n"
	}
	_, err := io.WriteString(w, out)
	return err
}

// Long returns all that is known, as Istio's programs print it.
func (info BuildInfo) Long() string {
	return fmt.Sprintf("version.BuildInfo{Version:%q, GitRevision:%q, GolangVersion:%q, BuildStatus:%q, GitTag:%q}",
		info.Version, info.GitRevision, info.GolangVersion, info.BuildStatus, info.GitTag)
}

// yamlText quotes text that YAML might not parse as a string, such as a revision of
// digits only.
func yamlText(s string) string {
	letter := func(r rune) bool { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }
	plain := func(r rune) bool { return letter(r) || '0' <= r && r <= '9' || strings.ContainsRune("._+-", r) }
	switch strings.ToLower(s) {
	case "", "true", "false", "yes", "no", "on", "off", "null", "y", "n":
		return strconv.Quote(s)
	}
	if !letter(rune(s[0])) || strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// ThisBuild returns what the linker and the compiler recorded.
func ThisBuild(version string) BuildInfo {
	info := BuildInfo{Version: version, GitRevision: "unknown", GolangVersion: runtime.Version(), BuildStatus: "unknown", GitTag: version}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	for _, s := range build.Settings {
		switch {
		case s.Key == "vcs.revision":
			info.GitRevision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			info.BuildStatus = "Modified"
		case s.Key == "vcs.modified":
			info.BuildStatus = "Clean"
		}
	}
	return info
}
