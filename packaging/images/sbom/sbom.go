// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package sbom writes what images and archives contain, as SPDX 2.3 documents in JSON. Equal
// contents are equal documents.
package sbom

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A Document is the part of an SPDX document that is written.
type Document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      Creation       `json:"creationInfo"`
	Packages      []Package      `json:"packages"`
	Relationships []Relationship `json:"relationships"`

	seen map[string]bool // identifiers of packages
}

// Creation says when and how a document was made.
type Creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// A Package is something that is contained. [Document.Add] sets the first four fields but the name
// and the version.
type Package struct {
	ID        string      `json:"SPDXID"`
	Name      string      `json:"name"`
	Version   string      `json:"versionInfo"`
	Location  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Checksums []Checksum  `json:"checksums,omitempty"`
	Refs      []Reference `json:"externalRefs,omitempty"`
}

// A Checksum is a hash in hexadecimal digits.
type Checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

// A Reference names a package elsewhere.
type Reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

// A Relationship connects two packages by their identifiers.
type Relationship struct {
	From string `json:"spdxElementId"`
	Kind string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

// New returns a document without packages. Tool is the command that makes it.
func New(name, tool string, created time.Time) *Document {
	return &Document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name, seen: map[string]bool{},
		Creation: Creation{Created: created.Format(time.RFC3339), Creators: []string{"Tool: " + tool}},
	}
}

// Add adds a package to an owner, which is another package or the document, and returns its
// identifier. A package may have several owners.
func (d *Document) Add(owner string, p Package) string {
	p.ID, p.Location = "SPDXRef-"+clean(p.Name+"-"+p.Version), "NOASSERTION"
	if !d.seen[p.ID] {
		d.seen[p.ID] = true
		d.Packages = append(d.Packages, p)
	}
	relation := "CONTAINS"
	if owner == d.ID {
		relation = "DESCRIBES"
	}
	d.Relationships = append(d.Relationships, Relationship{owner, relation, p.ID})
	return p.ID
}

// AddProgram adds a Go program and the modules that are compiled into it.
func (d *Document) AddProgram(owner, file, version string) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	sum, err := Sum(file)
	if err != nil {
		return err
	}
	program := d.Add(owner, Package{Name: filepath.Base(file), Version: version, Checksums: sum})
	d.Add(program, goModule("stdlib", strings.TrimPrefix(info.GoVersion, "go")))
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		d.Add(program, goModule(m.Path, m.Version))
	}
	return nil
}

// AddEnvoy adds an Envoy.
func (d *Document) AddEnvoy(owner, file, version string) error {
	sum, err := Sum(file)
	if err != nil {
		return err
	}
	d.Add(owner, Package{Name: "envoy", Version: version, Checksums: sum, Refs: URL("pkg:github/envoyproxy/envoy@v" + version)})
	return nil
}

// Encode returns the document in JSON. Kind is a part of its namespace.
func (d *Document) Encode(kind string) ([]byte, error) {
	d.Namespace = ""
	text, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	d.Namespace = "urn:outrigger:" + kind + ":" + hex.EncodeToString(sum[:])
	return json.MarshalIndent(d, "", " ")
}

// goModule returns the package of a Go module.
func goModule(path, version string) Package {
	return Package{Name: path, Version: version, Refs: URL("pkg:golang/" + path + "@" + version)}
}

// URL returns the reference of a package URL.
func URL(url string) []Reference {
	return []Reference{{"PACKAGE-MANAGER", "purl", url}}
}

// Sum returns the SHA-256 of a file.
func Sum(path string) ([]Checksum, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	return []Checksum{{"SHA256", hex.EncodeToString(sum[:])}}, nil
}

// clean returns a name with the characters that an identifier of SPDX may have.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, name)
}
