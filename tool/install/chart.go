// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/charts"
	"github.com/outrigger-mesh/outrigger/internal/template"
)

// chart is a Helm chart.
type chart struct {
	Name       string `json:"name"`
	Version    string `json:"version"`
	AppVersion string `json:"appVersion"`
	Kubernetes string `json:"kubeVersion"`

	values    map[string]any // defaults
	schema    *schema        // of values
	helpers   []byte         // what all templates may include
	templates map[string][]byte
	crds      []byte
}

// loadChart reads a chart from a directory of files.
func loadChart(files fs.FS, dir string) (*chart, error) {
	c := &chart{templates: map[string][]byte{}}
	var meta, schemaDoc, values []byte
	err := fs.WalkDir(files, dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		doc, err := fs.ReadFile(files, file)
		if err != nil {
			return err
		}
		switch name := strings.TrimPrefix(file, dir+"/"); {
		case name == "Chart.yaml":
			meta = doc
		case name == "values.yaml":
			values = doc
		case name == "values.schema.json":
			schemaDoc = doc
		case strings.HasPrefix(name, "crds/"):
			c.crds = append(append(c.crds, "\n---\n"...), doc...)
		case path.Ext(name) == ".tpl":
			c.helpers = append(append(c.helpers, doc...), '\n')
		case path.Ext(name) == ".yaml":
			c.templates[name] = doc
		}
		return nil
	})
	if err == nil {
		err = yaml.Unmarshal(meta, c)
	}
	if err == nil {
		c.values, err = parseValues("values.yaml", values)
	}
	if err == nil {
		c.schema, err = parseSchema(schemaDoc)
	}
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", dir, err)
	}
	return c, nil
}

// ours is the chart of the control plane. A version of the tool is that of the images, too.
func ours(version string) (*chart, error) {
	c, err := loadChart(charts.Chart, charts.Root)
	if err == nil && version != "" {
		c.AppVersion = version
	}
	return c, err
}

// supports returns an error if the API server is too old for the chart.
func (c *chart) supports(major, minor string) error {
	var oldest, middle, m, n int
	if _, err := fmt.Sscanf(c.Kubernetes, ">=%d.%d", &oldest, &middle); err != nil {
		return fmt.Errorf("chart %s: kubeVersion %q: %w", c.Name, c.Kubernetes, err)
	}
	if _, err := fmt.Sscanf(major+"."+minor, "%d.%d", &m, &n); err != nil {
		return fmt.Errorf("the API server has the version %q.%q: %w", major, minor, err)
	}
	if m < oldest || m == oldest && n < middle {
		return fmt.Errorf("the API server has the version %d.%d: Kubernetes %d.%d or newer is needed", m, n, oldest, middle)
	}
	return nil
}

// render returns the objects of the chart, in the order in which they are applied.
func (c *chart) render(r release, given map[string]any) ([]*unstructured.Unstructured, error) {
	values := merge(c.values, given)
	if err := c.schema.check(values); err != nil {
		return nil, err
	}
	r.Revision, _ = values["revision"].(string) // the schema says that it is a text
	params := map[string]any{
		"Values":  values,
		"Chart":   map[string]any{"Name": c.Name, "Version": c.Version, "AppVersion": c.AppVersion},
		"Release": map[string]any{"Name": r.name(), "Namespace": r.Namespace, "Service": manager},
	}
	functions := template.Functions{"toYaml": toYAML}
	docs := [][]byte{c.crds}
	for name, source := range c.templates {
		doc, err := functions.Render(name, append(slices.Clone(c.helpers), source...), params)
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	var objects []*unstructured.Unstructured
	for _, doc := range docs {
		parsed, err := parseObjects(doc)
		if err != nil {
			return nil, err
		}
		objects = append(objects, parsed...)
	}
	for _, o := range objects {
		if _, err := resourceOf(o); err != nil {
			return nil, err
		}
		r.mark(o)
	}
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.GetName(), b.GetName()))
	})
	return objects, nil
}

// toYAML is Helm's function: without the line feed at the end.
func toYAML(v any) (string, error) {
	doc, err := yaml.Marshal(v)
	return strings.TrimSuffix(string(doc), "\n"), err
}

// parseObjects reads documents separated by lines of three hyphens. Empty ones are skipped.
func parseObjects(doc []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for part := range bytes.SplitSeq(append([]byte("\n"), doc...), []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(part, &o.Object); err != nil {
			return nil, fmt.Errorf("the chart did not render YAML: %w: check the values", err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
	return objects, nil
}
