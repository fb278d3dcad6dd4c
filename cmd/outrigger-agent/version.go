// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// buildInfo is what version prints, in the shape of Istio's programs.
type buildInfo struct {
	Version       string `json:"version"`
	GitRevision   string `json:"revision"`
	GolangVersion string `json:"golang_version"`
	BuildStatus   string `json:"status"`
	GitTag        string `json:"tag"`
}

func newVersionCommand() *cobra.Command {
	var short bool
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Args:    cobra.NoArgs,
		Example: "  outrigger-agent version\n  outrigger-agent version -s\n  outrigger-agent version -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printVersion(cmd.OutOrStdout(), short, output)
		},
	}
	cmd.Flags().BoolVarP(&short, "short", "s", false, "print the version only")
	cmd.Flags().StringVarP(&output, "output", "o", "", "yaml or json")
	return cmd
}

func printVersion(w io.Writer, short bool, output string) error {
	info := thisBuild()
	var out string
	switch {
	case output == "json":
		doc, err := json.MarshalIndent(map[string]buildInfo{"clientVersion": info}, "", "  ")
		if err != nil {
			return err
		}
		out = string(doc) + "\n"
	case output == "yaml":
		out = fmt.Sprintf("clientVersion:\n  golang_version: %s\n  revision: %s\n  status: %s\n  tag: %s\n  version: %s\n",
			info.GolangVersion, info.GitRevision, info.BuildStatus, info.GitTag, info.Version)
	case output != "":
		return fmt.Errorf("--output is %q, it must be yaml or json", output)
	case short:
		out = info.Version + "\n"
	default:
		out = fmt.Sprintf("version %s, revision %s (%s), %s\n", info.Version, info.GitRevision, info.BuildStatus, info.GolangVersion)
	}
	_, err := io.WriteString(w, out)
	return err
}

// thisBuild puts together what the linker and the compiler wrote down.
func thisBuild() buildInfo {
	info := buildInfo{Version: version, GitRevision: "unknown", GolangVersion: runtime.Version(), BuildStatus: "unknown", GitTag: version}
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
