package klbr

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

const (
	// DefaultSession exists from the first start on.
	DefaultSession = "default"
	// MainLane is the lane of people's messages.
	MainLane = "main"
	// MaintenanceLane is the lane of upkeep.
	MaintenanceLane = "maintenance"
)

var nameRE = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// CheckName says whether name may name a session or a lane: 1 to 64 of
// a-z, 0-9, dot, underscore and hyphen, the first a letter or a digit.
// what ("session", "lane") goes into the error.
func CheckName(what, name string) error {
	if nameRE.MatchString(name) {
		return nil
	}
	return Errorf(CodeInvalid, "%s name %q is not valid", what, name).
		WithHint("use 1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit")
}

// Digest is the lower-case hex SHA-256 of parts, each prefixed by nothing:
// callers separate parts where they could run together.
func Digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
