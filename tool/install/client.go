// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// fieldManager owns the fields that the chart sets.
	fieldManager = "outrigger-install"
	// maxAnswer bounds an answer of the API server.
	maxAnswer = 64 << 20
)

// client calls the API server.
type client struct {
	http   *http.Client
	server string // URL
}

// apiError is an error response of the API server.
type apiError struct {
	code    int
	message string
}

func (e *apiError) Error() string { return e.message }

// isCode reports whether an error is an answer with a code.
func isCode(err error, code int) bool {
	answer := (*apiError)(nil)
	return errors.As(err, &answer) && answer.code == code
}

// path returns the path of a kind of objects, or of one of them.
func (r resource) path(namespace, name string) string {
	path := "/apis/" + r.version
	if !strings.Contains(r.version, "/") {
		path = "/api/" + r.version
	}
	if r.namespaced && namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	path += "/" + r.plural
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	return path
}

// call sends a request and decodes the answer to out, unless that is nil.
func (c *client) call(ctx context.Context, method, path string, query url.Values, body, out any) error {
	doc, err := json.Marshal(body)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(ctx, method, c.server+path+"?"+query.Encode(), bytes.NewReader(doc))
	if err != nil {
		return err
	}
	q.Header.Set("Accept", "application/json")
	switch method {
	case http.MethodGet:
		q.Body, q.ContentLength = http.NoBody, 0
	case http.MethodPatch:
		q.Header.Set("Content-Type", "application/apply-patch+yaml") // JSON is YAML
	default:
		q.Header.Set("Content-Type", "application/json")
	}
	a, err := c.http.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = a.Body.Close() }() // it has been read
	if doc, err = io.ReadAll(io.LimitReader(a.Body, maxAnswer)); err != nil {
		return err
	}
	if a.StatusCode >= http.StatusMultipleChoices {
		return failure(a.StatusCode, doc)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(doc, out)
}

func failure(code int, doc []byte) error {
	const most = 2000 // bytes of a message
	status := metav1.Status{}
	if err := json.Unmarshal(doc, &status); err != nil || status.Message == "" {
		status.Message = fmt.Sprintf("the API server returned %d %s", code, http.StatusText(code))
	}
	if len(status.Message) > most {
		status.Message = status.Message[:most] + "…"
	}
	return &apiError{code, status.Message}
}

// apply applies an object on the server. A dry run changes nothing.
func (c *client) apply(ctx context.Context, o *unstructured.Unstructured, dryRun, force bool) (*unstructured.Unstructured, error) {
	r, err := resourceOf(o)
	if err != nil {
		return nil, err
	}
	query := url.Values{"fieldManager": {fieldManager}, "fieldValidation": {"Strict"}}
	if force {
		query.Set("force", "true")
	}
	if dryRun {
		query.Set("dryRun", "All")
	}
	out := &unstructured.Unstructured{}
	return out, c.call(ctx, http.MethodPatch, r.path(o.GetNamespace(), o.GetName()), query, o.Object, &out.Object)
}

// get returns an object, or nil if there is none.
func (c *client) get(ctx context.Context, r resource, namespace, name string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	err := c.call(ctx, http.MethodGet, r.path(namespace, name), nil, nil, &o.Object)
	if isCode(err, http.StatusNotFound) {
		return nil, nil
	}
	return o, err
}

// list returns the objects with labels in a namespace, or in all of them.
func (c *client) list(ctx context.Context, r resource, namespace string, query url.Values) ([]unstructured.Unstructured, error) {
	var out struct{ Items []map[string]any }
	if err := c.call(ctx, http.MethodGet, r.path(namespace, ""), query, nil, &out); err != nil {
		return nil, err
	}
	var items []unstructured.Unstructured
	for _, item := range out.Items {
		items = append(items, unstructured.Unstructured{Object: item})
	}
	return items, nil
}

// remove deletes an object. It is no error if there is none.
func (c *client) remove(ctx context.Context, r resource, namespace, name string, dryRun bool) error {
	// With a body, the API server ignores the query.
	options := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
	if dryRun {
		options["dryRun"] = []string{"All"}
	}
	err := c.call(ctx, http.MethodDelete, r.path(namespace, name), nil, options, nil)
	if isCode(err, http.StatusNotFound) {
		return nil
	}
	return err
}
