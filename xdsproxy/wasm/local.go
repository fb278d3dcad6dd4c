// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Marker is part of the type URL of every configuration of a Wasm extension: HTTP and network
// filters, access logs, stats sinks, services.
const Marker = ".wasm.v3."

// maxNesting is the maximum nesting depth of messages that are inspected.
const maxNesting = 100

// typeMember is the JSON member that names the type of a message.
var typeMember = member{0, "@type", "@type"}

// Check returns an error if a serialized message contains, at any depth, the configuration of a
// Wasm extension whose code is a local file that is neither below FileDir nor below Dir. It
// resolves links. Messages that do not contain Marker need no check.
func (c *Cache) Check(message []byte) error {
	return c.checkNested(message, 0)
}

func (c *Cache) checkNested(b []byte, depth int) error {
	if !bytes.Contains(b, []byte(Marker)) {
		return nil
	}
	if depth > maxNesting {
		return fmt.Errorf("a Wasm extension is nested deeper than %d messages", maxNesting)
	}
	if eachField(b, func(wire.Field) error { return nil }) != nil {
		return nil // it is a string
	}
	if err := c.checkCode(b); err != nil {
		return err
	}
	return eachField(b, func(f wire.Field) error {
		if f.Type != protowire.BytesType {
			return nil
		}
		return c.checkNested(f.Data, depth+1)
	})
}

// checkCode checks a message if it is the configuration of a Wasm extension: an Any, possibly with
// a TypedStruct, or the JSON form of an Any.
func (c *Cache) checkCode(b []byte) error {
	var enc encoding
	plugin := b
	if v, err := (structured{}).get(b, typeMember); err == nil && strings.Contains(v.text, Marker) {
		enc = structured{}
	} else if typeName, v, err := openAny(b); err == nil {
		switch typeName {
		case udpaTypedStruct, xdsTypedStruct:
			if inner, err := text(v, structTypeURL); err == nil && strings.Contains(inner, Marker) {
				enc = structured{}
				if plugin, _, err = message(v, structValue); err != nil {
					return err
				}
			}
		default:
			if strings.Contains(typeName, Marker) {
				enc, plugin = native{}, v
			}
		}
	}
	if enc == nil {
		return nil
	}
	name, err := codeFile(enc, plugin)
	if err != nil || name == "" {
		return err
	}
	f, err := openBelow(c.cfg.Dir, name) // a cached module, as in the last good configuration
	if err != nil {
		f, err = c.openLocal(name)
	}
	if err != nil {
		return fmt.Errorf("the code of a Wasm extension is the file %q: %w", name, err)
	}
	return f.Close()
}

// codeFile returns the local file of a plugin's code, or "" if the code is not a file.
func codeFile(enc encoding, plugin []byte) (string, error) {
	v := value{message: plugin}
	for _, m := range []member{wasmConfig, vmConfig, vmCode, codeLocal, localFilename} {
		var err error
		if v, err = enc.get(v.message, m); err != nil || !v.ok {
			return "", err
		}
	}
	return v.text, nil
}

// fileURL returns the URL of a local file.
func fileURL(name string) string {
	u := url.URL{Scheme: "file", Path: name}
	return u.String()
}

// openLocal opens a regular file below FileDir.
func (c *Cache) openLocal(name string) (*os.File, error) {
	if c.cfg.FileDir == "" {
		return nil, errors.New("no directory for Wasm modules in files is configured")
	}
	return openBelow(c.cfg.FileDir, name)
}

// openBelow opens a regular file below a directory.
func openBelow(dir, name string) (*os.File, error) {
	path, err := filepath.Rel(dir, name)
	if err != nil || !filepath.IsLocal(path) {
		return nil, fmt.Errorf("the file is not below %s", dir)
	}
	root, err := os.OpenRoot(dir) // prevents links from leaving it
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // read-only: closing cannot lose data
	return openRegular(root, path)
}
