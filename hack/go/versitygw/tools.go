//go:build tools

// Package tools names the program that hack/tools builds from this module, so that `go mod tidy`
// keeps what it needs.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
