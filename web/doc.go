// Package web is the status page: what the workers are doing, or why they are not running.
//
// What it guarantees:
//
//   - It only reads: there are no forms, and GET and HEAD are the only methods. Two things are
//     written nevertheless, in main's schema maintenance: the backlogs, once a minute, for the
//     charts; and a list of runs closes those whose process died.
//   - However many browsers there are, the databases are read at most every two seconds, with
//     bounded statements. Plans are made when somebody asks, each at most every 30 seconds, and
//     limited for each client as by the API.
//   - It works while main does not answer, and says so; lists then have the time at which they were
//     read.
//   - It works without JavaScript, loads nothing from other hosts, and runs its own script only
//     (Content-Security-Policy).
//   - If the API needs a token, so does the page, of a viewer or more: as bearer token, or as
//     password with any user name. Certificates have the roles that they have there.
package web
