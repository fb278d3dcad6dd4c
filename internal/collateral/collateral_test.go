// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package collateral

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// program returns a root command with a subcommand that has a flag, a hidden subcommand, and
// collateral.
func program() *cobra.Command {
	root := &cobra.Command{Use: "program", Short: "Runs a program", SilenceErrors: true, SilenceUsage: true}
	root.CompletionOptions.DisableDefaultCmd = true
	run := func(*cobra.Command, []string) {}
	proxy := &cobra.Command{Use: "proxy", Short: "Run the proxy", Run: run}
	proxy.Flags().String("meshConfig", "", "mesh config file")
	root.AddCommand(proxy, &cobra.Command{Use: "secret", Hidden: true, Run: run}, New())
	return root
}

func TestCollateral(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args  []string
		files []string // the written files, sorted
		text  string   // part of the last file
		errs  string
	}{
		"everything": {args: []string{"--all"}, files: []string{"_program", "program-proxy.1", "program.1", "program.bash", "program.md", "program_proxy.md"}, text: "--meshConfig string"},
		"markdown":   {args: []string{"--markdown"}, files: []string{"program.md", "program_proxy.md"}, text: "# program proxy\n\nRun the proxy\n"},
		"bash":       {args: []string{"--bash"}, files: []string{"program.bash"}, text: "bash completion V2 for program"},
		"zsh":        {args: []string{"--zsh"}, files: []string{"_program"}, text: "#compdef program"},
		"no format":  {errs: "collateral needs a format"},
		"man pages":  {args: []string{"--man"}, files: []string{"program-proxy.1", "program.1"}, text: ".BR program\\-proxy (1)\n"},
		"HTML":       {args: []string{"--html_fragment_with_front_matter"}, errs: "writes no YAML or HTML"},
		"a file":     {args: []string{"--all", "--outputDir", file}, errs: "it must be a directory"},
		"nowhere":    {args: []string{"--all", "--outputDir", file + "s"}, errs: "--outputDir: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			root, out := program(), &bytes.Buffer{}
			root.SetOut(out)
			root.SetErr(out)
			root.SetArgs(append([]string{"collateral", "-o", dir}, tc.args...))
			if err := root.Execute(); tc.errs == "" && err != nil || tc.errs != "" && (err == nil || !strings.Contains(err.Error(), tc.errs)) {
				t.Errorf("got error %v, want %q", err, tc.errs)
			}
			if out.Len() != 0 {
				t.Errorf("got output %q, want none", out)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var written []string
			for _, e := range entries {
				written = append(written, e.Name())
			}
			if !slices.Equal(written, tc.files) {
				t.Fatalf("written files: got %q, want %q", written, tc.files)
			}
			if len(written) == 0 {
				return
			}
			if doc, err := os.ReadFile(filepath.Join(dir, written[len(written)-1])); err != nil || !strings.Contains(string(doc), tc.text) {
				t.Errorf("%s: got %q, error %v; want it to contain %q", written[len(written)-1], doc, err, tc.text)
			}
		})
	}
}

// TestManPage reads a man page with groff, which warns of what it does not understand.
func TestManPage(t *testing.T) {
	t.Parallel()
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("no groff in PATH")
	}
	root := program()
	proxy, _, err := root.Find([]string{"proxy"})
	if err != nil {
		t.Fatal(err)
	}
	proxy.Long = "Runs it.\n\n.hidden files, 'quotes' and a\\b stay:\n  COLUMN   --flag"
	proxy.Example = "  program proxy --meshConfig a.yaml"
	cmd := exec.CommandContext(t.Context(), groff, "-man", "-Tascii", "-ww", "-P-c", "-P-b", "-P-u")
	cmd.Stdin = strings.NewReader(manPage(proxy))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || errs.Len() > 0 {
		t.Fatalf("%v: %s", err, errs.String())
	}
	for _, want := range []string{"PROGRAM-PROXY(1)", "program-proxy - Run the proxy\n", "program proxy [flags]\n", ".hidden files, 'quotes' and a\\b stay:\n", "  COLUMN   --flag\n", "--meshConfig string   mesh config file\n", "program proxy --meshConfig a.yaml\n", "program(1)\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, out.String())
		}
	}
}
