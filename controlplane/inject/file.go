// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/aliases"
)

// maxFile bounds a file with objects.
const maxFile = 64 << 20

// File adds proxies to the pods of the objects of a file: Pods, objects with a template of a pod,
// and Lists of them. Other documents stay as they are, byte for byte. Objects without a namespace
// are of the given one. notice receives what a user should know about an object.
func (in *Injector) File(r io.Reader, w io.Writer, namespace string, notice func(string)) error {
	doc, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return err
	}
	if len(doc) > maxFile {
		return fmt.Errorf("the file has more than %d MiB", maxFile>>20)
	}
	f := &file{in: in, namespace: namespace, notice: notice}
	line := 1
	for _, part := range documents(doc) {
		out, err := f.document(part)
		if err != nil {
			return fmt.Errorf("the document at line %d: %w", line, err)
		}
		if _, err := w.Write(out); err != nil {
			return err
		}
		line += bytes.Count(part, []byte("\n"))
	}
	return nil
}

// documents splits a file before the lines that begin documents. The parts together are the file.
func documents(doc []byte) [][]byte {
	var parts [][]byte
	start := 0
	for i := 0; i < len(doc); {
		end := len(doc)
		if n := bytes.IndexByte(doc[i:], '\n'); n >= 0 {
			end = i + n + 1
		}
		if i > start && isSeparator(doc[i:end]) {
			parts = append(parts, doc[start:i])
			start = i
		}
		i = end
	}
	return append(parts, doc[start:])
}

func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// file is the injection of one file.
type file struct {
	in        *Injector
	namespace string
	notice    func(string)
}

// document returns a document with proxies, or itself.
func (f *file) document(doc []byte) ([]byte, error) {
	var object map[string]any
	if err := aliases.Check(doc); err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(doc, &object); err != nil {
		return nil, err
	}
	changed, err := f.object(object)
	if err != nil || !changed {
		return doc, err
	}
	out, err := yaml.Marshal(object)
	if err != nil {
		return nil, err
	}
	if end := bytes.IndexByte(doc, '\n'); end >= 0 && isSeparator(doc[:end+1]) {
		first := bytes.TrimSpace(doc[3:end])
		if len(first) == 0 || first[0] == '#' {
			return append(bytes.Clone(doc[:end+1]), out...), nil
		}
		return append([]byte("---\n"), out...), nil
	}
	return out, nil
}

// templates are where objects have the template of a pod, by group and kind; "" means that the
// object is a pod.
func templates() map[string]string {
	const spec = "spec.template"
	return map[string]string{
		"/Pod":                               "",
		"/ReplicationController":             spec,
		"apps/Deployment":                    spec,
		"apps/DaemonSet":                     spec,
		"apps/ReplicaSet":                    spec,
		"apps/StatefulSet":                   spec,
		"batch/Job":                          spec,
		"batch/CronJob":                      "spec.jobTemplate.spec.template",
		"apps.openshift.io/DeploymentConfig": spec,
		"/DeploymentConfig":                  spec, // as written by old clients
		"argoproj.io/Rollout":                spec,
	}
}

// object adds a proxy to an object and reports whether it changed.
func (f *file) object(object map[string]any) (bool, error) {
	version, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	if list, ok := object["items"].([]any); ok && version == "v1" && kind == "List" {
		changed := false
		for i := range list {
			item, ok := list[i].(map[string]any)
			if !ok {
				continue
			}
			c, err := f.object(item)
			if err != nil {
				return false, fmt.Errorf("items[%d]: %w", i, err)
			}
			changed = changed || c
		}
		return changed, nil
	}
	group := ""
	if g, _, ok := strings.Cut(version, "/"); ok {
		group = g
	}
	path, ok := templates()[group+"/"+kind]
	if !ok {
		return false, nil
	}
	meta, err := metadataOf(object)
	if err != nil {
		return false, fmt.Errorf("%s: %w", kind, err)
	}
	if meta.Namespace == "" {
		meta.Namespace = f.namespace
	}
	name := kind + " " + strings.TrimPrefix(meta.Namespace+"/"+meta.Name, "/")
	pod := object
	if path != "" {
		for field := range strings.SplitSeq(path, ".") {
			if pod, ok = pod[field].(map[string]any); !ok {
				return false, fmt.Errorf("%s has no %s", name, path)
			}
		}
	}
	changed, err := f.pod(pod, name, path, owner{version, kind, meta.Namespace, meta.Name})
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return changed, nil
}

// metadata is the part of an object's metadata that names it.
type metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

func metadataOf(object map[string]any) (metadata, error) {
	var out struct {
		Metadata metadata `json:"metadata"`
	}
	doc, err := json.Marshal(map[string]any{"metadata": object["metadata"]})
	if err != nil {
		return out.Metadata, err
	}
	return out.Metadata, json.Unmarshal(doc, &out)
}

// pod adds a proxy to a pod or a template of one.
func (f *file) pod(object map[string]any, name, path string, from owner) (bool, error) {
	doc, err := json.Marshal(object)
	if err != nil {
		return false, err
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(doc, pod); err != nil {
		return false, fmt.Errorf("its pod is not valid: %w", err)
	}
	r := Request{Pod: pod, Namespace: from.namespace}
	if path != "" {
		r.owner = &from
		if pod.Namespace != "" {
			r.Namespace = pod.Namespace
		}
	}
	result, err := f.in.Inject(r)
	if err != nil {
		return false, err
	}
	for _, warning := range result.Warnings {
		f.notice(name + ": " + warning)
	}
	if result.Skipped != "" {
		f.notice(name + " is left as it is: " + result.Skipped)
		return false, nil
	}
	_, _, err = Patch(object, pod, result.Pod)
	return err == nil, err
}

// ReadFiles reads the configuration, the values and the mesh config of the injector from files; an empty name
// means the defaults. version is that of the images.
func (in *Injector) ReadFiles(config, values, mesh, version string) error {
	var docs [3][]byte
	for i, name := range []string{config, values, mesh} {
		if name == "" {
			continue
		}
		doc, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		docs[i] = doc
	}
	var err error
	if in.Config, err = ParseConfig(docs[0]); err != nil {
		return err
	}
	if in.Values, err = ParseValues(docs[1], version); err != nil {
		return err
	}
	in.Mesh, err = meshconfig.Parse(docs[2])
	return err
}
