// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"bytes"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
)

// sitePage is a page of the built site.
type sitePage struct {
	loads, links []string // references: what a browser loads with the page, and what it links to
	anchors      map[string]bool
	parts        map[string]bool // what scripts look for
	text         string          // of the article, as it is without scripts
}

// styleURL is a reference of a style sheet.
var styleURL = regexp.MustCompile(`url\(["']?([^"')]+)["']?\)`)

// TestSite builds the site of the documents. It works from files and without scripts: browsers load
// nothing from elsewhere, each link inside of the site has its target, and each page has its text.
func TestSite(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "make", "-C", root, "--no-print-directory", "docs").CombinedOutput()
	if err != nil {
		if _, missing := os.Stat(filepath.Join(root, "bin", "docs", ".installed")); missing != nil {
			t.Skipf("mkdocs cannot be installed: %s", bytes.TrimSpace(out))
		}
		t.Fatalf("make docs: %v\n%s", err, out)
	}
	files, pages := readSite(t, filepath.Join(root, "bin", "site"))
	if len(pages) < 40 {
		t.Fatalf("the site has %d pages only", len(pages))
	}
	for _, c := range analyze.Checks() {
		p := pages["reference/codes/"+c.Code+".html"]
		if p == nil {
			t.Errorf("the site has no page of %s", c.Code)
			continue
		}
		e, _ := analyze.Explain(c.Code)
		for _, part := range []string{e.Name, e.When, e.NotReported, e.Example, e.Findings, e.Corrected} {
			if want := strings.Join(strings.Fields(part), " "); !strings.Contains(strings.Join(strings.Fields(p.text), " "), want) {
				t.Errorf("the page of %s does not contain %q", c.Code, want)
			}
		}
	}
	for name, p := range pages {
		if len(strings.Fields(p.text)) < 10 && name != "404.html" {
			t.Errorf("%s has the text %q", name, p.text)
		}
		// The address of the page that is missing is unknown, so its references are absolute.
		if name == "404.html" {
			continue
		}
		// Scripts of the theme ask GitHub about a source, and load what draws diagrams.
		for _, part := range []string{"component source", "class mermaid"} {
			if p.parts[part] {
				t.Errorf("%s has a %s, for which scripts load from elsewhere", name, part)
			}
		}
		for _, ref := range p.loads {
			if to, _, own := targetOf(name, ref); !own || !files[to] {
				t.Errorf("%s loads %s, which is not part of the site", name, ref)
			}
		}
		for _, ref := range p.links {
			to, anchor, own := targetOf(name, ref)
			if !own {
				continue
			}
			if target := pages[to]; !files[to] || anchor != "" && target != nil && !target.anchors[anchor] {
				t.Errorf("%s links to %s, which is not part of the site", name, ref)
			}
		}
	}
}

// targetOf returns the file and the anchor that a reference of a page leads to. It reports false for
// those to other sites.
func targetOf(page, ref string) (file, anchor string, own bool) {
	u, err := url.Parse(ref)
	if err != nil {
		return ref, "", true // there is no such file
	}
	if u.Scheme != "" || u.Host != "" {
		return "", "", false
	}
	if u.Path == "" {
		return page, u.Fragment, true
	}
	return path.Join(path.Dir(page), u.Path), u.Fragment, true
}

// readSite returns the names of all files of a site, and its pages.
func readSite(t *testing.T, dir string) (files map[string]bool, pages map[string]*sitePage) {
	t.Helper()
	files, pages = map[string]bool{}, map[string]*sitePage{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[name] = true
		content, err := os.ReadFile(filepath.Join(dir, name))
		switch {
		case err != nil:
			return err
		case path.Ext(name) == ".html":
			node, err := html.Parse(bytes.NewReader(content))
			if err != nil {
				return err
			}
			pages[name] = &sitePage{anchors: map[string]bool{}, parts: map[string]bool{}}
			pages[name].read(node, false)
		case path.Ext(name) == ".css":
			for _, m := range styleURL.FindAllSubmatch(content, -1) {
				if _, _, own := targetOf(name, string(m[1])); !own && !bytes.HasPrefix(m[1], []byte("data:")) {
					t.Errorf("%s loads %s, which is not part of the site", name, m[1])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, pages
}

// read reads an element and what it contains.
func (p *sitePage) read(n *html.Node, article bool) {
	if n.Type == html.TextNode && article {
		p.text += n.Data
	}
	article = article || n.Data == "article"
	for _, a := range n.Attr {
		switch {
		case a.Key == "data-md-component":
			p.parts["component "+a.Val] = true
		case a.Key == "class":
			for _, class := range strings.Fields(a.Val) {
				p.parts["class "+class] = true
			}
		case a.Key == "id" || a.Key == "name":
			p.anchors[a.Val] = true
		case a.Key == "src" || a.Key == "href" && n.Data == "link":
			p.loads = append(p.loads, a.Val)
		case a.Key == "href":
			p.links = append(p.links, a.Val)
		}
	}
	if n.Data == "script" || n.Data == "style" {
		return
	}
	for c := range n.ChildNodes() {
		p.read(c, article)
	}
}
