// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// maxAnalyzed is the maximum size of all analyzed files in bytes.
const maxAnalyzed = 256 << 20

// outLog is the name that istioctl has for the table.
const outLog = "log"

// analyzeFlags are the flags of analyze.
type analyzeFlags struct {
	askFlags
	watchFlags
	files                   []string
	namespace               string
	everywhere              bool
	mesh, meshConfig        string
	running                 bool
	codes, suppressed       []string
	failure, threshold      string
	lenient, list, recursed bool
	suppressions            []suppression
}

func newAnalyzeCommand(cfg Config) *cobra.Command {
	f := analyzeFlags{askFlags: askFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "analyze [FILE | DIRECTORY]...",
		Short: "Find mistakes in objects and between them",
		Long: `Find mistakes that the rules of a single object cannot find: references to what does
not exist, policies that match nothing or deny everything, objects that contradict
each other or the Kubernetes objects beside them. Each finding has a code, that of
istioctl analyze where there is one.

With files, only these are analyzed: the objects of the mesh with the Services, Pods,
Deployments, Namespaces, Secrets and webhooks beside them; objects that no check uses
are counted and skipped. With --mesh, the workloads and the configuration of a mesh
file are added. Without files, the objects of the running control plane are analyzed;
with files and --use-kube or --control, its objects with those of the files, which
replace objects of their names.

What cannot be checked, because the input has no Service, workload or Secret, is
named. With --watch, the analysis is repeated, and printed again when it changes.

The exit code is 0, 1 for a finding of the failure threshold, or 2 for a wrong
command line.`,
		Example: "  outrigger analyze config/\n" +
			"  outrigger analyze --mesh examples/shop/mesh.yaml\n" +
			"  kubectl get ns,svc,deploy,pods,vs,dr -A -o yaml | outrigger analyze -\n" +
			"  outrigger analyze -k route.yaml --failure-threshold warning\n" +
			"  outrigger analyze --suppress IST0118=Service/shop/* -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			f.files = append(f.files, args...)
			return f.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(&f.files, "filename", "f", nil, "file, directory (with its subdirectories) or - for standard input; can be repeated")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "only findings of this namespace, which is also that of objects that name none (default \"default\")")
	flags.BoolVarP(&f.everywhere, "all-namespaces", "A", false, "findings of all namespaces, also with -n")
	flags.StringVar(&f.mesh, "mesh", "", "mesh file of outrigger up, with its workloads and its configuration")
	flags.StringVar(&f.meshConfig, "meshConfigFile", "", "file with the mesh config")
	flags.BoolVarP(&f.running, "use-kube", "k", false, "analyze the objects of the running control plane, also with files")
	flags.StringSliceVar(&f.codes, "code", nil, "only findings with this code; can be repeated")
	flags.StringArrayVarP(&f.suppressed, "suppress", "S", nil, "no findings with this CODE, or with CODE=KIND/NAMESPACE/NAME, where * stands for any text; can be repeated")
	flags.StringVar(&f.failure, "failure-threshold", string(analyze.Error), "least severity that fails: error, warning or info")
	flags.StringVar(&f.threshold, "output-threshold", string(analyze.Info), "least severity that is printed: error, warning or info")
	flags.BoolVar(&f.lenient, "ignore-unknown", false, "skip documents that are no objects")
	flags.BoolVarP(&f.list, "list-analyzers", "L", false, "print all codes")
	flags.BoolVarP(&f.recursed, "recursive", "R", true, "read subdirectories")
	f.addAsked(cmd, outLog)
	completeValue(cmd, "code", codes)
	f.addWatch(cmd)
	return cmd
}

func (f *analyzeFlags) run(cmd *cobra.Command) error {
	if err := f.check(cmd); err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	if f.list {
		return f.printCodes(cmd.OutOrStdout())
	}
	return f.show(cmd, f.watchFlags, func(ctx context.Context, _ *watcher) (frame, error) { return f.frame(ctx, cmd.InOrStdin()) })
}

// frame returns what the analysis finds now.
func (f *analyzeFlags) frame(ctx context.Context, in io.Reader) (frame, error) {
	result, err := f.analyze(ctx, in)
	if err != nil {
		return frame{}, err
	}
	failed := false
	result.Findings = slices.DeleteFunc(result.Findings, func(n analyze.Finding) bool {
		if !f.shows(n) {
			return true
		}
		failed = failed || n.Severity.Rank() <= analyze.Severity(f.failure).Rank()
		return n.Severity.Rank() > analyze.Severity(f.threshold).Rank()
	})
	next, err := f.frameOf(result, func(v view) error {
		f.print(v.out, result)
		return nil
	})
	next.failed = failed
	return next, err
}

// check checks the values of flags.
func (f *analyzeFlags) check(cmd *cobra.Command) error {
	for _, of := range []struct{ name, value string }{{"failure-threshold", f.failure}, {"output-threshold", f.threshold}} {
		if analyze.Severity(of.value).Rank() < 0 {
			return fmt.Errorf("--%s %s is unknown: write error, warning or info", of.name, of.value)
		}
	}
	for _, code := range f.codes {
		if !analyze.Known(code) {
			return fmt.Errorf("--code %s is unknown: outrigger analyze -L lists the codes", code)
		}
	}
	for _, text := range f.suppressed {
		s, err := parseSuppression(text)
		if err != nil {
			return err
		}
		f.suppressions = append(f.suppressions, s)
	}
	f.running = f.running || len(f.controls) > 0 || len(f.files) == 0 && f.mesh == "" && !cmd.Flags().Changed("use-kube")
	switch {
	case f.list:
	case f.watch && slices.Contains(f.files, "-"):
		return errors.New("--watch reads files again, but not standard input: name files")
	case f.running && (f.mesh != "" || f.meshConfig != ""):
		return errors.New("the running control plane has its own mesh config: write --mesh and --meshConfigFile for files only")
	case !f.running && len(f.files) == 0 && f.mesh == "":
		return errors.New("nothing to analyze: name files, or leave --use-kube=false out")
	}
	return nil
}

// shows reports whether the flags select a finding.
func (f *analyzeFlags) shows(n analyze.Finding) bool {
	switch {
	case len(f.codes) > 0 && !slices.Contains(f.codes, n.Code),
		f.namespace != "" && !f.everywhere && n.Object.Namespace != "" && n.Object.Namespace != f.namespace:
		return false
	}
	return !slices.ContainsFunc(f.suppressions, func(s suppression) bool { return s.matches(n) })
}

// analyze returns the result of the files, or of the running control plane.
func (f *analyzeFlags) analyze(ctx context.Context, in io.Reader) (analyze.Result, error) {
	files, err := f.read(in, f.files)
	if err != nil {
		return analyze.Result{}, f.cfg.Exit(exitUsage, err)
	}
	if f.running {
		return f.ask(ctx, files)
	}
	result, err := f.local(ctx, files)
	if err != nil {
		return result, f.cfg.Exit(exitUsage, err)
	}
	return result, nil
}

// read reads files, directories and the standard input.
func (f *analyzeFlags) read(in io.Reader, named []string) (out []analyze.File, err error) {
	paths, err := filesIn(named)
	if err != nil {
		return nil, err
	}
	if !f.recursed {
		paths = slices.DeleteFunc(paths, func(path string) bool {
			return !slices.ContainsFunc(named, func(n string) bool { return n == path || filepath.Clean(n) == filepath.Dir(path) })
		})
	}
	size := 0
	for _, path := range paths {
		file := analyze.File{Source: path}
		if path == "-" {
			file.Source = "standard input"
			file.Data, err = io.ReadAll(io.LimitReader(in, codec.MaxFileSize+1))
		} else {
			file.Data, err = readFile(path)
		}
		if err != nil {
			return nil, err
		}
		if size += len(file.Data); size > maxAnalyzed {
			return nil, fmt.Errorf("the files have more than %d MiB: analyze fewer at once", maxAnalyzed>>20)
		}
		out = append(out, file)
	}
	return out, nil
}

// readFile reads a file, at most one byte more than a file of objects may have.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // read-only: closing cannot lose data
	return io.ReadAll(io.LimitReader(file, codec.MaxFileSize+1))
}

// local analyzes files without a control plane.
func (f *analyzeFlags) local(ctx context.Context, files []analyze.File) (analyze.Result, error) {
	var settings *meshv1alpha1.MeshConfig
	read := analyze.Read(ctx.Done(), files, f.namespace, f.lenient)
	if f.mesh != "" {
		described, err := mesh.Describe(f.mesh)
		if err != nil {
			return analyze.Result{}, err
		}
		if settings, err = meshconfig.Parse(described.MeshConfig); err != nil {
			return analyze.Result{}, err
		}
		if err := f.addMesh(ctx, &read, described); err != nil {
			return analyze.Result{}, err
		}
	}
	if f.meshConfig != "" {
		text, err := readFile(f.meshConfig)
		if err != nil {
			return analyze.Result{}, err
		}
		if settings, err = meshconfig.Parse(text); err != nil {
			return analyze.Result{}, fmt.Errorf("%s: %w", f.meshConfig, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return analyze.Result{}, err
	}
	in := analyze.Input{Objects: read.Objects, Problems: read.Problems, Manifests: read.Manifests, AssumedMesh: settings == nil}
	in.Build(settings)
	result := analyze.Run(in)
	result.Skipped = read.Skipped
	return result, nil
}

// addMesh adds the workloads and the configuration of a mesh file to what files contain, which
// replaces objects of its names.
func (f *analyzeFlags) addMesh(ctx context.Context, to *analyze.Files, described *mesh.Description) error {
	var files []analyze.File
	if described.ConfigDir != "" {
		var err error
		dir := described.ConfigDir
		if from, err := filepath.Abs("."); err == nil {
			if short, err := filepath.Rel(from, dir); err == nil && !strings.HasPrefix(short, "..") {
				dir = short
			}
		}
		if files, err = f.read(nil, []string{dir}); err != nil {
			return err
		}
	}
	own := map[model.Key]bool{}
	for _, c := range to.Objects {
		own[c.Key] = true
	}
	files = append(files, analyze.File{Source: f.mesh, Data: described.Objects})
	more := analyze.Read(ctx.Done(), files, "", f.lenient)
	for _, c := range more.Objects {
		if own[c.Key] {
			continue
		}
		if sch, ok := schema.Of(c.Kind); ok && strings.HasPrefix(c.Source, f.mesh+":") {
			c.Source = fmt.Sprintf("%s:%d", f.mesh, described.Line(sch.Name, c.Namespace, c.Name))
		}
		to.Objects = append(to.Objects, c)
	}
	for _, p := range more.Problems {
		if !own[p.Object] {
			to.Problems = append(to.Problems, p)
		}
	}
	to.Skipped += more.Skipped
	to.Manifests.Add(more.Manifests)
	return nil
}

// ask asks the running control planes. Replicas have the same objects, so the first answer counts; the
// workloads that are connected to it are some of all.
func (f *analyzeFlags) ask(ctx context.Context, files []analyze.File) (analyze.Result, error) {
	fields, size := url.Values{"namespace": {f.namespace}}, 0
	if f.lenient {
		fields.Set("lenient", "true")
	}
	for _, file := range files {
		if size += len(file.Data); size > maxProposed {
			return analyze.Result{}, f.cfg.Exit(exitUsage, fmt.Errorf("the files have more than %d bytes, the limit for a control plane: analyze fewer at once, or without --use-kube", maxProposed))
		}
		fields.Add("objects", string(file.Data))
		fields.Add("source", file.Source)
	}
	addresses, err := f.addresses()
	if err != nil {
		return analyze.Result{}, err
	}
	a := ask[analyze.Result](ctx, addresses[:1], question{path: "analyze", fields: fields, form: len(files) > 0 || f.memory == nil, memory: f.memory}, f.timeout)[0]
	if a.err != nil {
		return a.value, f.cfg.Exit(exitFailed, noAnswer(a.address, a.err))
	}
	return a.value, nil
}

// quickTimeout is the timeout of an analysis that a command makes in passing.
const quickTimeout = 3 * time.Second

// AnalyzeChange returns the findings that a change of the store at a URL brings, as the control plane that
// uses the store knows them: that of outrigger up, the first of named, or that of the cluster, which may
// be nil, for its own store. It returns ErrNoControl if none is known.
func AnalyzeChange(ctx context.Context, named string, cluster *Cluster, store string, change analyze.Change) (analyze.Result, error) {
	control, err := mesh.RunningControl(os.TempDir(), store)
	if control == "" {
		control, _, _ = strings.Cut(named, ",")
	}
	if err == nil && control == "" && store == "k8s://" && cluster.usable() {
		cluster.hurry(quickTimeout)
		pods, err := cluster.replicas()
		if err == nil {
			control, err = cluster.to(cluster.namespace, pods[0], controlPort, quickTimeout)
		}
		if err != nil {
			return analyze.Result{}, fmt.Errorf("the control plane of the cluster is not reached: %w", err)
		}
	}
	fields, size := url.Values{"objects": {change.Objects}, "compare": {"true"}}, len(change.Objects)
	for name, keys := range map[string][]model.Key{"created": change.Created, "deleted": change.Deleted} {
		for _, key := range keys {
			fields.Add(name, key.String())
			size += len(key.String())
		}
	}
	switch {
	case err != nil || control == "":
		return analyze.Result{}, analyze.ErrNoControl
	case size > maxProposed:
		return analyze.Result{}, fmt.Errorf("the change has %d bytes, and at most %d are analyzed", size, maxProposed)
	}
	a := ask[analyze.Result](ctx, []string{control}, question{path: "analyze", fields: fields, form: true}, quickTimeout)[0]
	switch {
	case a.err != nil:
		return a.value, fmt.Errorf("the control plane at %s did not answer: %w", control, a.err)
	case !a.value.Compared:
		return a.value, fmt.Errorf("the control plane at %s is older and does not compare", control)
	}
	return a.value, nil
}
