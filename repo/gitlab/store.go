package gitlab

import "github.com/caretaker-go/caretaker/repo/internal/pg"

// Groups finds, removes and restores the groups of one database.
type Groups struct{ db *pg.Database }

// Users decides about the users of one database and deletes them.
type Users struct{ db *pg.Database }

// Ghosts migrates the rows of deleted users in one database.
type Ghosts struct{ db *pg.Database }

// Tokens finds the bots of one database whose tokens are inactive.
type Tokens struct{ db *pg.Database }

// Placeholders claims and deletes the placeholder users of one database.
type Placeholders struct{ db *pg.Database }

// Stores are the stores of one database, for package repo.
func Stores(db *pg.Database) (Groups, Users, Ghosts, Tokens, Placeholders) {
	return Groups{db}, Users{db}, Ghosts{db}, Tokens{db}, Placeholders{db}
}
