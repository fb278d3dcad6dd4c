// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/redact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// maxReportPart and maxReport are the sizes in bytes of one file in a report, and of all of them.
	maxReportPart = 32 << 20
	maxReport     = 256 << 20
	// maxReportLog is how much of the end of a log file is collected, in bytes.
	maxReportLog = 1 << 20
)

// reported are the questions whose answers are part of a report.
var reported = []string{"proxies", "syncz", "connections", "push_status", "pushcontext", "mesh", "registryz", "instancesz", "configz", "history", "analyze"}

// bugReportFlags are the flags of bug-report.
type bugReportFlags struct {
	askFlags
	file    string
	proxies int
	most    time.Duration
}

func newBugReportCommand(cfg Config) *cobra.Command {
	f := bugReportFlags{askFlags: askFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "bug-report",
		Short: "Write an archive that describes the mesh, for a report of a problem",
		Long: `Write an archive with the state of the control planes, the objects, their history
and the findings of analyze, metrics, and of proxies what the control plane gave them,
and what their Envoys and agents say themselves. Of a mesh of outrigger up it also has
the ends of the logs of the control plane and the agents. The command lists what it
collects and what it cannot reach, as does manifest.json in the archive, and ends
after the time of --within.

` + reachLong + ` Those of this machine
need no control plane.

Private keys, tokens, and the values of fields that are named like a secret are
replaced by ` + redact.Mark + `. Read the archive before you send it: names of hosts and
services, addresses, and what an object says in other fields stay in it.`,
		Example: "  outrigger bug-report\n  outrigger bug-report --proxies 5 --file shop.tar.gz\n  tar -xzf outrigger-report.tar.gz",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.addControls(cmd)
	f.output = outTable
	cmd.Flags().StringVar(&f.file, "file", "outrigger-report.tar.gz", "file to write; it must not exist")
	cmd.Flags().DurationVar(&f.most, "within", 2*time.Minute, "greatest time in all")
	cmd.Flags().IntVar(&f.proxies, "proxies", 20, "number of proxies whose configuration is collected, first those that are not in sync")
	return cmd
}

func (f *bugReportFlags) run(cmd *cobra.Command) error {
	addresses, noControl := f.addresses()
	if noControl != nil && !errors.Is(noControl, errCluster) {
		return noControl
	}
	switch {
	case f.most <= 0:
		return f.cfg.Exit(exitUsage, fmt.Errorf("--within %s must be more than 0", f.most))
	case f.proxies < 0:
		return f.cfg.Exit(exitUsage, fmt.Errorf("--proxies %d must not be negative", f.proxies))
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.most)
	defer cancel()
	file, err := os.OpenFile(f.file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		err = fmt.Errorf("%s exists: remove it, or name another file with --file", f.file)
	}
	if err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	compressed := gzip.NewWriter(file)
	b := &bugReport{flags: f, out: tar.NewWriter(compressed), say: view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}}
	b.add("about.json", b.about(cmd.Root()))
	if noControl != nil {
		b.missed("control plane", noControl)
	}
	for _, address := range addresses {
		b.control(ctx, address)
		b.logs(address)
	}
	b.ofProxies(ctx, addresses)
	if ctx.Err() != nil {
		b.say.say("incomplete: %s were not enough, see --within\n", f.most.String())
	}
	b.manifest(ctx.Err() != nil)
	err = cmp.Or(b.err, cmd.Context().Err())
	err = errors.Join(err, b.out.Close(), compressed.Close(), file.Close())
	if err != nil {
		_ = os.Remove(f.file) // return the first error
		return f.cfg.Exit(exitFailed, fmt.Errorf("write %s: %w", f.file, err))
	}
	b.say.say("\n%s: %s, %d kB.\n", f.file, count(b.files, "file", "files"), b.size>>10)
	if !b.reached {
		return f.cfg.Exit(exitFailed, errors.New("no control plane was reached: name others with --control; and no proxy of this machine was found"))
	}
	return nil
}

// bugReport is an archive that is being written.
type bugReport struct {
	flags *bugReportFlags
	out   *tar.Writer
	say   view
	files int
	size  int64
	err   error // of the archive
	// reached is true once something has answered, known are the proxies of the control planes that have.
	reached            bool
	known              []answer[report.Replica]
	collected, missing []entry
}

// entry is a file of a report, or one that it lacks.
type entry struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes,omitempty"`
	Why   string `json:"why,omitempty"`
}

// about describes the machine and the command.
func (b *bugReport) about(root *cobra.Command) []byte {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // "" on other systems
	text, err := json.MarshalIndent(map[string]any{
		"tool": cmp.Or(root.Version, "unknown"), "written": b.say.now.UTC().Format(time.RFC3339), "go": runtime.Version(),
		"platform": runtime.GOOS + "/" + runtime.GOARCH, "kernel": strings.TrimSpace(string(kernel)), "cpus": runtime.NumCPU(),
	}, "", "  ")
	if err != nil {
		b.err = err
	}
	return text
}

// add adds a file, without secrets, unless the report is too large.
func (b *bugReport) add(name string, content []byte) {
	if b.put(name, content) {
		b.say.say("collected  %s\n", name)
	}
}

// put is like add, but does not print what it has added.
func (b *bugReport) put(name string, content []byte) (added bool) {
	switch {
	case b.err != nil:
		return false
	case len(content) > maxReportPart || b.size+int64(len(content)) > maxReport:
		b.missed(name, errors.New("the report would be too large"))
		return false
	}
	content = withoutSecrets(content)
	b.err = b.out.WriteHeader(&tar.Header{Name: path.Join("outrigger-report", name), Mode: 0o600, Size: int64(len(content)), ModTime: b.say.now, Format: tar.FormatPAX})
	if b.err == nil {
		_, b.err = b.out.Write(content)
	}
	b.files++
	b.size += int64(len(content))
	b.collected = append(b.collected, entry{Name: name, Bytes: len(content)})
	return true
}

// missed reports what cannot be reached, or is left out.
func (b *bugReport) missed(name string, err error) {
	why := oneLine(redact.Log(err.Error()))
	b.missing = append(b.missing, entry{Name: name, Why: why})
	b.say.say("missing    %s: %s\n", name, why)
}

// manifest adds the list of what the report has, and of what it lacks.
func (b *bugReport) manifest(incomplete bool) {
	text, err := json.MarshalIndent(map[string]any{"collected": b.collected, "missing": b.missing, "incomplete": incomplete}, "", " ")
	if err != nil {
		b.err = cmp.Or(b.err, err)
		return
	}
	b.add("manifest.json", text)
}

// control adds the state of a control plane, if it answers.
func (b *bugReport) control(ctx context.Context, address string) {
	dir, reached := reportDir(address), false
	for _, name := range reported {
		a := ask[json.RawMessage](ctx, []string{address}, question{path: name}, b.flags.timeout)[0]
		if a.err != nil {
			b.missed(path.Join(dir, name+".json"), a.err)
			if said := (*answerError)(nil); !reached && !errors.As(a.err, &said) {
				return // nobody answers there
			}
			continue
		}
		reached, b.reached = true, true
		b.add(path.Join(dir, name+".json"), a.value)
		if name == "proxies" {
			b.proxies(ctx, address, dir, a.value)
		}
	}
	text, err := metricsOf(ctx, address, b.flags.timeout)
	if err != nil {
		b.missed(path.Join(dir, "metrics.txt"), err)
		return
	}
	b.add(path.Join(dir, "metrics.txt"), text)
}

// logs adds the ends of the logs of a mesh on this machine.
func (b *bugReport) logs(address string) {
	paths, err := mesh.RunningLogs(os.TempDir(), address)
	if err != nil {
		b.missed("logs", err)
	}
	for _, file := range paths {
		name := path.Join(reportDir(address), "log", path.Base(file))
		text, err := endOf(file, maxReportLog)
		if err != nil {
			b.missed(name, err)
			continue
		}
		b.add(name, text)
	}
}

// endOf returns the last bytes of a file, beginning with a whole line.
func endOf(name string, most int64) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // read-only: closing cannot lose data
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	skipped := max(info.Size()-most, 0)
	text, err := io.ReadAll(io.NewSectionReader(file, skipped, most))
	if skipped > 0 {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return text, err
}

// reportDir returns the directory of a control plane in a report.
func reportDir(address string) string {
	return strings.NewReplacer(":", "_", "/", "_").Replace(strings.TrimPrefix(address, "http://"))
}

// proxies adds the configuration of proxies, first of those that are not in sync.
func (b *bugReport) proxies(ctx context.Context, address, dir string, raw []byte) {
	var replica report.Replica
	if err := json.Unmarshal(raw, &replica); err != nil {
		b.missed(path.Join(dir, "proxies"), err)
		return
	}
	slices.SortStableFunc(replica.Proxies, func(x, y report.Proxy) int {
		return cmp.Compare(btoi(inSync(x)), btoi(inSync(y)))
	})
	b.known = append(b.known, answer[report.Replica]{address: address, value: replica})
	for _, p := range replica.Proxies[:min(len(replica.Proxies), b.flags.proxies)] {
		name := path.Join(dir, "proxies", strings.ReplaceAll(p.Name, "/", "_")+".json")
		a := ask[json.RawMessage](ctx, []string{address}, question{path: "config_dump", fields: url.Values{"proxyID": {p.Name}}}, b.flags.timeout)[0]
		if a.err != nil {
			b.missed(name, a.err)
			continue
		}
		b.add(name, a.value)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// inSync reports whether a proxy has acknowledged all that it was sent.
func inSync(p report.Proxy) bool {
	return !slices.ContainsFunc(p.Types, func(t report.Type) bool { return t.State != report.Synced && t.State != report.NotSent })
}

// metricsOf returns the metrics of a control plane.
func metricsOf(ctx context.Context, address string, timeout time.Duration) ([]byte, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReportPart+1))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = &answerError{resp.StatusCode, oneLine(string(text[:min(len(text), maxErrText)]))}
	}
	return text, err
}

// withoutSecrets replaces the secrets in an answer: in JSON by the names of fields too, otherwise in
// texts only.
func withoutSecrets(content []byte) []byte {
	var value any
	decoder := json.NewDecoder(strings.NewReader(string(content)))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil || decoder.More() {
		return []byte(redact.Log(string(content)))
	}
	out, err := json.MarshalIndent(redact.JSON(value), "", " ")
	if err != nil {
		return []byte(redact.Mark) // a value that was decoded can be encoded
	}
	return out
}
