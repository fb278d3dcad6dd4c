// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// Config configures how the commands find the cluster.
type Config struct {
	// Cluster returns an HTTP client for the API server of a context of the user's kubeconfig, and
	// the API server's URL. An empty context means the current one.
	Cluster func(kubeContext string) (*http.Client, string, error)
	// Version is the default tag of the images. Empty means the version of the chart's application.
	Version string
}

const (
	// defaultTimeout is the timeout for the control plane to become ready.
	defaultTimeout = 5 * time.Minute
	// maxValues bounds a file of values.
	maxValues = 1 << 20
)

// Commands returns the commands of this package.
func Commands(cfg Config) []*cobra.Command {
	return []*cobra.Command{newInstallCommand(cfg), newUninstallCommand(cfg)}
}

// flags are the flags of both commands.
type flags struct {
	release
	context string
	dryRun  bool
}

func (f *flags) add(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVarP(&f.Namespace, "namespace", "n", "istio-system", "namespace of the control plane")
	cmd.Flags().StringVar(&f.Revision, "revision", "", "revision of the control plane (default: the one that the label istio-injection=enabled selects)")
	cmd.Flags().StringVar(&f.context, "context", "", "context of the kubeconfig (default: the current one)")
}

func (f *flags) installer(cfg Config, out io.Writer) (*installer, error) {
	c, server, err := cfg.Cluster(f.context)
	if err != nil {
		return nil, err
	}
	return &installer{client: &client{http: c, server: server}, release: f.release, out: out}, nil
}

const installLong = `Install the control plane in a cluster, or upgrade it: this renders the Helm chart of
Outrigger and applies the objects, without Helm. The same command with other values
changes the installation; objects that it no longer has are removed.

The API server checks all objects before the first one is applied. Then the command
waits until the control plane runs and its webhooks answer. A cluster can have several
control planes, each with a revision of its own.

charts/outrigger/values.yaml lists the values. A file of values is read first, and
--set counts more than the files. Kinds (CustomResourceDefinitions) of other owners,
such as Istio, are not changed.`

const installExample = `  outrigger install
  outrigger install --set replicaCount=2 --set 'tags={prod,stable}'
  outrigger install --revision canary -f values.yaml   # beside another one
  outrigger install --dry-run | kubectl diff -f -      # what would change`

func newInstallCommand(cfg Config) *cobra.Command {
	f := flags{}
	var files, sets []string
	var force, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:     "install",
		Short:   "Install the control plane in a cluster, or upgrade it",
		Long:    installLong,
		Example: installExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			values, err := givenValues(cmd.InOrStdin(), files, sets)
			if err != nil {
				return err
			}
			c, err := ours(cfg.Version)
			if err != nil {
				return err
			}
			objects, err := f.render(c, values)
			if err != nil {
				return err
			}
			if f.dryRun {
				return print(columns.Raw(cmd.OutOrStdout()), objects)
			}
			i, err := f.installer(cfg, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			i.force, i.chart = force, c
			if !wait {
				timeout = 0
			}
			return i.installAndWait(cmd.Context(), objects, timeout)
		},
	}
	f.add(cmd)
	cmd.Flags().StringArrayVarP(&files, "values", "f", nil, "file with values of the chart, - is the standard input; may be repeated")
	cmd.Flags().StringArrayVar(&sets, "set", nil, "one value, such as image.tag=v1 or tags={prod,stable}; may be repeated")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the objects as YAML; no cluster is asked")
	cmd.Flags().BoolVar(&force, "force-conflicts", false, "take over fields that others have set")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the control plane is ready")
	cmd.Flags().DurationVar(&timeout, "timeout", defaultTimeout, "timeout of --wait")
	return cmd
}

// render renders the chart. A revision among the values counts if the flag is not given.
func (f *flags) render(c *chart, values map[string]any) ([]*unstructured.Unstructured, error) {
	if f.Revision != "" {
		values["revision"] = f.Revision
	}
	f.Revision, _ = values["revision"].(string) // the schema checks it
	return c.render(f.release, values)
}

// givenValues merges the files and what --set says.
func givenValues(stdin io.Reader, files, sets []string) (map[string]any, error) {
	values := map[string]any{}
	for _, name := range files {
		doc, err := readValues(stdin, name)
		if err != nil {
			return nil, fmt.Errorf("read values: %w", err)
		}
		more, err := parseValues(name, doc)
		if err != nil {
			return nil, err
		}
		values = overlay(values, more)
	}
	for _, text := range sets {
		if err := set(values, text); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func readValues(stdin io.Reader, name string) ([]byte, error) {
	from := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // only read
		from = file
	}
	doc, err := io.ReadAll(io.LimitReader(from, maxValues+1))
	if err == nil && len(doc) > maxValues {
		err = fmt.Errorf("%s has more than %d bytes", name, maxValues)
	}
	return doc, err
}

// print writes objects as YAML.
func print(w io.Writer, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		doc, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "---\n%s", doc); err != nil {
			return err
		}
	}
	return nil
}

// installAndWait installs the release. A timeout of zero means not to wait.
func (i *installer) installAndWait(ctx context.Context, objects []*unstructured.Unstructured, timeout time.Duration) error {
	if err := i.install(ctx, objects); err != nil {
		return err
	}
	if timeout > 0 {
		if err := i.wait(ctx, objects, timeout); err != nil {
			return err
		}
		i.say("%s is ready in %s", i.deployment(), i.Namespace)
	}
	label := "istio-injection=enabled"
	if suffix := i.suffix(); suffix != "" {
		label = revisionKey + "=" + i.Revision
	}
	i.say("next, for each namespace of the mesh:\n  kubectl label namespace default %s\n  kubectl -n default rollout restart deployment", label)
	return nil
}

const uninstallLong = `Remove a control plane that outrigger install has installed. Its webhooks go first, so
that nothing waits for it.

The kinds (CustomResourceDefinitions) stay, because all objects of a kind go with it;
--kinds removes those that Outrigger installed. The namespace and the certificate
authority in it stay too. Pods keep their proxies, and these their configuration, until
the pods are started again.`

const uninstallExample = `  outrigger uninstall --dry-run
  outrigger uninstall --revision canary
  outrigger uninstall --kinds   # with all VirtualServices and so on`

func newUninstallCommand(cfg Config) *cobra.Command {
	f := flags{}
	kinds := false
	cmd := &cobra.Command{
		Use:     "uninstall",
		Short:   "Remove a control plane that outrigger install has installed",
		Long:    uninstallLong,
		Example: uninstallExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := f.installer(cfg, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			return i.uninstall(cmd.Context(), kinds, f.dryRun)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be removed")
	cmd.Flags().BoolVar(&kinds, "kinds", false, "also remove the kinds, and with them all their objects")
	return cmd
}
